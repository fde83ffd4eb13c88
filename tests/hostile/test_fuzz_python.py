"""Damaged files for each Python reader, the same few in every run; ``make fuzz`` generates others."""

from __future__ import annotations

import random
from functools import cache
from itertools import islice

import pytest

from fuzz.python_readers import Target, failure_of, fuzz, inputs, targets
from mlfc.errors import ArchiveError, MlfcError
from mlfc.support.params import load_params

NAMES = (
    "tar", "archive", "parameters", "parameters as JSON", "parameters as BSON", "BSON", "graph JSON", "Relay text",
    "C code", "C header", "module blob", "tvm-ffi blob", "dynamic model", "ELF object",
)  # fmt: skip
FILES = 30


@cache
def by_name() -> dict[str, Target]:
    return {target.name: target for target in targets()}


def test_every_reader_has_a_test() -> None:
    assert tuple(by_name()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_good_files_are_read(name: str) -> None:
    for seed in by_name()[name].seeds:
        by_name()[name].read(seed)


@pytest.mark.parametrize("name", NAMES)
def test_damage_ends_in_an_error_of_ours_or_none(name: str) -> None:
    assert fuzz(by_name()[name], seed=7, count=FILES) == []


@pytest.mark.parametrize("name", sorted({*NAMES} - {"C code", "C header"}))
def test_the_damage_is_noticed(name: str) -> None:
    target = by_name()[name]
    refused = 0
    for data in islice(inputs(target, random.Random(3)), 40):
        try:
            target.read(data)
        except MlfcError:
            refused += 1
    assert refused > 5


def test_every_truncation_of_parameters_is_refused() -> None:
    good = by_name()["parameters"].seeds[0]
    for length in range(len(good)):
        with pytest.raises(ArchiveError):
            load_params(good[:length])


def test_what_a_reader_does_not_stand_is_reported() -> None:
    def read(data: bytes) -> None:
        if b"\xff" in data:
            raise IndexError("beyond")

    good = by_name()["tar"]
    (failure,) = fuzz(Target("bad", read, good.seeds, good.mutators), count=500)
    assert (failure.target, failure.cause) == ("bad", "IndexError: beyond")
    again = failure_of(Target("bad", read, (), ()), failure.data)
    assert again == failure
