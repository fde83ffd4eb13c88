"""Counts what a piece of work costs, instead of timing it: a count is the same on a busy machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# what Python calls at each event, which adds 1 for PyTrace_CALL (0) and PyTrace_C_CALL (4): of the standard library
# only cProfile counts in C, and it looks at the clock twice a call, so that work takes twice the time
_COUNTER = """
@number = global i64 0
define i32 @count(ptr %self, ptr %frame, i32 %event, ptr %argument) {
  %function = icmp eq i32 %event, 0
  %builtin = icmp eq i32 %event, 4
  %call = or i1 %function, %builtin
  %one = zext i1 %call to i64
  %before = load i64, ptr @number
  %after = add i64 %before, %one
  store i64 %after, ptr @number
  ret i32 0
}
"""


class Calls:
    """How many functions were called, those of C included.

    Attributes
    ----------
    number : int
        Set when the work has ended.
    """

    number = 0


@cache
def _counter() -> tuple[Any, ctypes.c_int64, object]:
    """Return the address of the function, the number, and what keeps both."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_COUNTER), machine)
    engine.finalize_object()
    number = ctypes.c_int64.from_address(engine.get_global_value_address("number"))
    return ctypes.c_void_p(engine.get_function_address("count")), number, engine


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Count the calls that this thread makes within a `with` block.

    Work without calls (one long regular expression, one large copy) does not show: limits of memory and the time at
    which a test is killed are for that.
    """
    calls = Calls()
    function, number, _ = _counter()
    number.value = 0
    ctypes.pythonapi.PyEval_SetProfile(function, None)
    try:
        yield calls
    finally:
        ctypes.pythonapi.PyEval_SetProfile(None, None)
        calls.number = number.value
