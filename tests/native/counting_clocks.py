"""Deterministic clocks that replace those of model profiles: they count their readings.

The n-th reading is n squared, so the difference of two consecutive readings identifies them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mlfc.archive.describe import profile
from mlfc.library import llvm_library
from mlfc.runtime.executors import profile as module_profile
from mlfc.runtime.executors import schedule

_IN_C = b"""
static uint64_t readings = 0;
uint64_t mlfc_trace_nanoseconds(void) {
  readings++;
  return latest = readings * readings;
}

"""
_IN_LLVM = """
@readings = internal global i64 0
define internal i32 @clock_gettime(i32 %which, ptr %time) {
  %before = load i64, ptr @readings
  %number = add i64 %before, 1
  store i64 %number, ptr @readings
  store i64 0, ptr %time
  %fraction = getelementptr i64, ptr %time, i32 1
  %square = mul i64 %number, %number
  store i64 %square, ptr %fraction
  ret i32 0
}
"""


def passed(operator: int) -> int:
    """Return the time between the two readings around an operator; the first timed operator is 0."""
    first = 2 * operator + 1
    return (first + 1) ** 2 - first**2


def _squares() -> Callable[[], int]:
    readings = 0

    def read() -> int:
        nonlocal readings
        readings += 1
        return readings**2

    return read


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace each clock that times operators by a new counting clock: in C, in LLVM code, in Python."""
    text = profile.record_file()
    start, end = text.index(b"uint64_t mlfc_trace_nanoseconds"), text.index(b"/* Record into")
    monkeypatch.setattr(profile, "record_file", lambda: text[:start] + _IN_C + text[end:])
    real, declared = llvm_library.compile_object, "declare i32 @clock_gettime(i32, ptr)\n"

    def compile_object(code: Any, machine: Any) -> Any:
        return real(code.replace(declared, _IN_LLVM) if isinstance(code, str) else code, machine)

    monkeypatch.setattr(llvm_library, "compile_object", compile_object)
    monkeypatch.setattr(schedule, "time", SimpleNamespace(perf_counter_ns=_squares()))
    monkeypatch.setattr(module_profile, "time", SimpleNamespace(perf_counter=_squares()))
