"""The tutorial for microcontrollers works unchanged, and its numbers are near the measured ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tutorial import run_page

PAGE = "microcontroller.md"
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def words(text: str) -> list[str]:
    """Return the words between numbers, regardless of column widths."""
    return _NUMBER.sub("N", text).split()


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]


def test_the_page_as_it_stands(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    compared = [step for step in run_page(PAGE, tmp_path, "build/board") if step.expected is not None]
    assert len(compared) >= 5
    for step in compared:
        assert step.expected is not None
        assert words(step.printed) == words(step.expected), step.commands
        # a change of kernels or compiler changes them slightly
        assert numbers(step.printed) == pytest.approx(numbers(step.expected), rel=0.3, abs=1), step.commands
