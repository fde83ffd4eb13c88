"""Tests do not read clocks or wait for a fixed time, as they would fail on a busy machine; they count instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CLOCKS = {"time", "timeit", "sched"}
# files without any of these words need not be parsed
_ANY = re.compile(rf"\b(?:{'|'.join(CLOCKS)}|timeout)\b")


def clocks(source: str) -> Iterator[str]:
    """Yield the uses of clocks and timeouts in a program."""
    for node in ast.walk(ast.parse(source)) if _ANY.search(source) else ():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        yield from (f"line {node.lineno} imports {name}" for name in names if name in CLOCKS)
        if isinstance(node, ast.keyword) and node.arg == "timeout" and isinstance(node.value, ast.Constant):
            # WATCHDOG alone ends a hanging call, and no test depends on its value
            yield f"line {node.lineno} waits for {node.value.value} seconds: WATCHDOG"


def test_no_test_reads_a_clock() -> None:
    found = [f"{path}: {what}" for path in sorted(TESTS.rglob("*.py")) for what in clocks(path.read_text("utf-8"))]
    assert not found


def test_clocks_are_found() -> None:
    faults = ["import time", "from time import monotonic", "def f():\n    import timeit", "run(timeout=60)"]
    assert [len(list(clocks(text))) for text in faults] == [1] * len(faults)
    assert not list(clocks("run(timeout=WATCHDOG)\nfrom mlfc.runtime import operator_clock"))
