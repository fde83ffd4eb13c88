"""Completion of command lines in shells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mlfc vali", {"validate"}),
        ("mlfc compile --share", {"--share-workspace", "--share-weights"}),
        ("mlfc compile --board nucleo_l4", {"nucleo_l4r5zi"}),
        ("mlfc compile --target cortex-m3", {"cortex-m3", "cortex-m33"}),
    ],
)
def test_shells_complete_commands_options_and_names(words: str, expected: set[str]) -> None:
    asked = {"_MLFC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    program = Path(sys.executable).with_name("mlfc")
    done = subprocess.run([program], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert expected <= {*done.stdout.split()}
    assert all(item.startswith(words.rsplit(maxsplit=1)[-1]) for item in done.stdout.split())
