"""The C runtime's readers under libFuzzer and sanitizers, for a few inputs each; ``make fuzz`` runs longer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuzz.c_readers import TARGETS, build, run, seeds
from tests.conftest import need

INPUTS = 1500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # one folder for all targets, because they share most of the runtime's objects
    return tmp_path_factory.mktemp("readers")


@pytest.mark.parametrize("target", TARGETS)
def test_reader_stands_random_input(target: str, folder: Path) -> None:
    need("clang", "clang")
    build(target, folder)
    outcome = run(target, folder, inputs=INPUTS)
    assert outcome.failure is None, f"{outcome.failure!r}\n{outcome.log[-4000:]}"
    # the fuzzer ran, and covered more paths of the reader than the seeds
    assert int(re.findall(r"Done (\d+) runs", outcome.log)[0]) == INPUTS
    assert len(list((folder / f"{target}_corpus").iterdir())) > len(seeds(target))
