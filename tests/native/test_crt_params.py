"""The C reader of parameter files: the specification's example, TVM's files, invalid files, and in-place use."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.native.crt_executor import Crt, CrtError, Node, graph_of, null, op, view

PARAMS_INVALID, MISMATCH, LIMIT, NO_INPUT = 0xA01, 0xA02, 0xA03, 0x702
EXAMPLE = bytes.fromhex(
    "b79c04054f8de5f7 0000000000000000 0100000000000000 0200000000000000 7030"
    "0100000000000000 3fa1b496f0405edd 0000000000000000 01000000 00000000 01000000"
    "02 20 0100 0200000000000000 0800000000000000 00000040 00008040".replace(" ", "")
)
"""The example of the specification: {"p0": float32 [2.0, 4.0]}."""
ARRAY = 42  # offset of the array


@pytest.fixture(scope="module")
def crt(tmp_path_factory: pytest.TempPathFactory) -> Crt:
    return Crt(tmp_path_factory.mktemp("params"))


def graph(shape: tuple[int, ...] = (2,), name: str = "p0") -> Node:
    """Return y = x + p0, with the parameter as the first input."""
    return graph_of([null(name), null("x"), op("add", [[1, 0], [0, 0]])], [[*shape], [2, 2], [2, 2]], [[2, 0, 0]])


def test_worked_example(crt: Crt) -> None:
    with crt.create(graph()) as executor:
        executor.load(EXAMPLE)
        executor.run()
        np.testing.assert_array_equal(executor.output(), np.float32([[2, 4], [2, 4]]))
        executor.load(EXAMPLE + b"bytes that come after")
        executor.load(struct.pack("<4Q", 0xF7E58D4F05049CB7, 0, 0, 0))


def changed(at: int, form: str, value: int) -> bytes:
    """Return the example with one number changed."""
    data = bytearray(EXAMPLE)
    struct.pack_into(form, data, at, value)
    return bytes(data)


BROKEN = {
    "magic": (changed(0, "<B", 0), PARAMS_INVALID, "byte 0: this is no parameter file"),
    "names": (changed(16, "<Q", 2**63), PARAMS_INVALID, "ends too early"),
    "name length": (changed(24, "<Q", 2**64 - 1), PARAMS_INVALID, "ends too early"),
    "arrays": (changed(34, "<Q", 2), PARAMS_INVALID, "numbers of names and arrays differ"),
    "array magic": (changed(ARRAY, "<Q", 1), PARAMS_INVALID, "does not start with its mark"),
    "device": (changed(ARRAY + 16, "<i", 2), PARAMS_INVALID, "CPU"),
    "dimensions": (changed(ARRAY + 24, "<i", 17), LIMIT, "TVM_CRT_MAX_NDIM"),
    "negative dimensions": (changed(ARRAY + 24, "<i", -1), LIMIT, "TVM_CRT_MAX_NDIM"),
    "negative extent": (changed(ARRAY + 32, "<q", -2), PARAMS_INVALID, "negative"),
    "large extent": (changed(ARRAY + 32, "<q", 2**62), PARAMS_INVALID, "size"),
    "size": (changed(ARRAY + 40, "<Q", 9), PARAMS_INVALID, "size"),
    "type": (changed(ARRAY + 28, "<B", 0), MISMATCH, "p0 has not the shape and type"),
    "bits": (changed(ARRAY + 29, "<B", 16), PARAMS_INVALID, "size"),
    "lanes": (changed(ARRAY + 30, "<H", 4), MISMATCH, "p0 has not the shape and type"),
    "name": (changed(32, "<B", ord("q")), NO_INPUT, "no input q0"),
    "NUL in the name": (changed(33, "<B", 0), PARAMS_INVALID, "NUL"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_file_is_refused_and_changes_nothing(crt: Crt, fault: str) -> None:
    data, code, message = BROKEN[fault]
    with crt.create(graph()) as executor:
        executor.load(EXAMPLE)
        with pytest.raises(CrtError) as caught:
            executor.load(data)
        assert message in str(caught.value)
        assert caught.value.code == code
        np.testing.assert_array_equal(view(executor.input(0)), np.float32([2, 4]))


def test_every_cut_of_the_file_is_refused(crt: Crt) -> None:
    with crt.create(graph()) as executor:
        for length in range(len(EXAMPLE)):
            with pytest.raises(CrtError):
                executor.load(EXAMPLE[:length])


def test_shape_must_be_the_graphs(crt: Crt) -> None:
    with crt.create(graph((1, 2))) as executor, pytest.raises(CrtError, match="p0 has not the shape"):
        executor.load(EXAMPLE)


def aligned(offset: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Return memory with the example, and its address; its elements start `offset` bytes after a multiple of 64."""
    memory = ctypes.create_string_buffer(len(EXAMPLE) + 128)
    elements = len(EXAMPLE) - 8
    address = ctypes.addressof(memory)
    address += (offset - address - elements) % 64
    ctypes.memmove(address, EXAMPLE, len(EXAMPLE))
    return memory, address


@pytest.mark.parametrize(
    ("offset", "alignment", "linked"), [(0, 64, 1), (0, 1, 1), (4, 1, 1), (4, 8, 0), (2, 1, 0), (1, 1, 0)]
)
def test_parameters_are_used_in_place_where_they_are_aligned(
    crt: Crt, offset: int, alignment: int, linked: int
) -> None:
    memory, address = aligned(offset)
    with crt.create(graph()) as executor:
        assert executor.link(address, len(EXAMPLE), alignment) == linked
        in_place = executor.input(0).data == address + len(EXAMPLE) - 8
        assert in_place == bool(linked)
        executor.run()
        np.testing.assert_array_equal(executor.output(), np.float32([[2, 4], [2, 4]]))
        before = memory.raw
        executor.set("p0", np.float32([5, 6]))
        executor.run()
        np.testing.assert_array_equal(executor.output(), np.float32([[5, 6], [5, 6]]))
        assert memory.raw == before


def test_storage_that_the_graph_writes_or_that_holds_more_is_not_linked(crt: Crt) -> None:
    _, address = aligned(0)
    written = graph_of([null("p0"), op("add", [[0, 0], [0, 0]])], [[2], [2]], [[1, 0]], storage=[0, 0])
    larger = graph_of(
        [null("p0"), null("x"), op("add", [[1, 0], [0, 0]])], [[2], [4], [4]], [[2, 0]], storage=[0, 0, 1]
    )
    for text, output in ((written, [4, 8]), (larger, [4, 8, 2, 4])):
        with crt.create(text) as executor:
            assert executor.link(address, len(EXAMPLE), 1) == 0
            executor.run()
            np.testing.assert_array_equal(executor.output(), np.float32(output))


def test_alignment_must_be_a_power_of_two(crt: Crt) -> None:
    _, address = aligned(0)
    with crt.create(graph()) as executor:
        for alignment in (0, 3):
            with pytest.raises(CrtError, match="power of two"):
                executor.link(address, len(EXAMPLE), alignment)


def test_name_longer_than_the_limit(crt: Crt) -> None:
    name = b"p" * 2000
    data = EXAMPLE[:24] + struct.pack("<Q", len(name)) + name + EXAMPLE[34:]
    with crt.create(graph()) as executor, pytest.raises(CrtError, match="TVM_CRT_MAX_STRLEN_PARAM_NAME"):
        executor.load(data)


def test_file_that_tvm_wrote(crt: Crt, shared: Path) -> None:
    weights = np.load(shared / "fixtures/tvm-0.14/conv_io.npz")["w"]
    blocks = weights.reshape(2, 4, 2, 4, 3, 3).transpose(0, 2, 4, 5, 3, 1)  # OIHW in the file's layout, OIHW4i4o
    data = (shared / "fixtures/tvm-0.14/conv.params").read_bytes()
    with crt.create(graph(blocks.shape)) as executor:
        executor.load(data)
        np.testing.assert_array_equal(view(executor.input(0)), blocks)
