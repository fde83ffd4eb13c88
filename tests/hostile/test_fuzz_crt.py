"""The C runtime's readers under libFuzzer and sanitizers, for a few seconds each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuzz.c_readers import TARGETS, build, run, seeds
from tests.conftest import need


@pytest.mark.parametrize("target", TARGETS)
def test_reader_stands_five_seconds_of_random_input(target: str, tmp_path: Path) -> None:
    need("clang", "clang")
    build(target, tmp_path)
    outcome = run(target, tmp_path, seconds=5)
    assert outcome.failure is None, f"{outcome.failure!r}\n{outcome.log[-4000:]}"
    # the fuzzer ran, and found more ways through the reader than the seeds take
    assert int(re.findall(r"Done (\d+) runs", outcome.log)[0]) > 1000
    assert len(list((tmp_path / f"{target}_corpus").iterdir())) > len(seeds(target))
