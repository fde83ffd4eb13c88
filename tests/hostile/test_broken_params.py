"""Broken parameter files: one clear error each, never an allocation by an unchecked length."""

from __future__ import annotations

import random
import struct
import tracemalloc

import numpy as np
import pytest

from mlforge.errors import ArchiveError
from mlforge.support.params import load_params, save_params

GOOD = save_params({"weight": np.arange(4, dtype=np.float32).reshape(2, 2)})
TENSOR = 24 + 8 + 6 + 8  # header, length of the name, the name, number of tensors


def patched(offset, layout, value):
    data = bytearray(GOOD)
    struct.pack_into(layout, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"byte 0.*header"),
        (patched(0, "<Q", 1), r"byte 0.*must start with"),
        (patched(16, "<Q", 2**60), r"byte 16.*names cannot be"),
        (patched(24, "<Q", 2**63), r"byte 32: a name needs"),
        (patched(32, "<B", 0xFF), r"byte 32.*UTF-8"),
        (patched(38, "<Q", 7), r"byte 38: 1 names but 7 tensors"),
        (patched(TENSOR, "<Q", 0), rf"'weight', byte {TENSOR}: a tensor must start"),
        (patched(TENSOR + 16, "<i", 2), rf"byte {TENSOR + 16}: device type 2"),
        (patched(TENSOR + 24, "<i", -1), rf"byte {TENSOR + 24}: a tensor of -1"),
        (patched(TENSOR + 24, "<i", 2**30), rf"byte {TENSOR + 24}: a tensor of {2**30}"),
        (patched(TENSOR + 28, "<B", 3), rf"byte {TENSOR + 28}: dtype code 3"),
        (patched(TENSOR + 30, "<H", 4), rf"byte {TENSOR + 28}: dtype .* 4 lanes"),
        (patched(TENSOR + 32, "<q", -2), rf"byte {TENSOR + 32}: the shape"),
        (patched(TENSOR + 32, "<q", 2**62), rf"byte {TENSOR + 32}: the shape"),
        (patched(TENSOR + 48, "<q", 15), rf"byte {TENSOR + 48}: 15 bytes of data"),
        (GOOD[:-1], rf"byte {TENSOR + 56}: the data of a tensor needs 16 bytes, 15 are left"),
    ],
)
def test_each_fault_names_its_byte(data, message):
    with pytest.raises(ArchiveError, match=message):
        load_params(data)


def test_every_truncation_is_refused():
    for length in range(len(GOOD)):
        with pytest.raises(ArchiveError):
            load_params(GOOD[:length])


def test_no_mutation_crashes_or_allocates_much():
    chance = random.Random(1)
    tracemalloc.start()
    for _ in range(500):
        data = bytearray(GOOD)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        try:
            load_params(bytes(data))
        except ArchiveError:
            continue
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
