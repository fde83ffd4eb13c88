"""Cost of a piece of work as a count of calls: unlike a time, a count does not depend on the load of the machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# The callback that Python invokes for each event; it counts PyTrace_CALL (0) and PyTrace_C_CALL (4). In the standard
# library only cProfile counts in C, but it reads the clock twice per call, which doubles the time of the work.
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
    """The number of function calls, including calls of C functions.

    Attributes
    ----------
    number : int
        Set at the end of the `with` block.
    """

    number = 0


@cache
def _counter() -> tuple[Any, ctypes.c_int64, object]:
    """Return the address of the callback, its counter, and the engine that keeps both alive."""
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

    Work without calls (one long regular expression, one large copy) is not counted; memory limits and timeouts cover
    it.
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
