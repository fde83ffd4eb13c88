"""Files of tests have names of their own: pytest takes two of one name for one module, and stops."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_names_are_unique() -> None:
    count = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, number in count.items() if number > 1] == []
