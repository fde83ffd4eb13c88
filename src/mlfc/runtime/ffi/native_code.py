"""Code in the memory of this process, and its functions: in the classic packed convention, and in that of tvm-ffi."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from mlfc.errors import InputError, MlfcError, RunError
from mlfc.runtime.ffi.call_values import CallFrame
from mlfc.runtime.ffi.ffi_values import NONE, FfiFrame, take_raised, take_result
from mlfc.runtime.tensor import c_abi
from mlfc.support.text import Displayed

Frame = TypeVar("Frame")
# without types of arguments, calls take what frames hold as it is
_STATUS = ctypes.CFUNCTYPE(ctypes.c_int32)
FFI_PREFIX = "__tvm_ffi_"
"""What the symbols of functions start with."""
_OF_ARGUMENTS = ("TypeError", "ValueError", "IndexError", "KeyError", "AttributeError")


class NativeCode(Protocol):
    """Functions and variables by symbol; the object keeps them in memory."""

    @property
    def place(self) -> str:
        """Its name in messages, unique in the process."""

    def address(self, symbol: str) -> int | None:
        """Return the address of a symbol, or None."""


class NativeFunc(Displayed, Generic[Frame]):
    """A function of compiled code at an address, with the frames of earlier calls for reuse.

    `last_error` returns the text of this thread's last failure, and the exception behind it if it came from Python.
    `owner` keeps the code loaded. The function does not write to its first `reads` arguments.
    """

    def __init__(
        self,
        address: int,
        name: str,
        *,
        last_error: Callable[[], tuple[str, BaseException | None]] | None = None,
        owner: object = None,
        reads: int = 0,
    ) -> None:
        self.name = name
        self.address = address
        self._function = _STATUS(address)
        self._last_error = last_error
        self._owner = owner
        self._reads = reads
        self._frames: defaultdict[int, list[Frame]] = defaultdict(list)

    def _facts(self) -> Mapping[str, object]:
        return {"name": self.name}

    def _reported(self, status: int) -> RunError:
        """Return the error of a call that returned `status`, with the library's own message."""
        text, cause = self._last_error() if self._last_error is not None else ("", None)
        if cause is not None and not isinstance(cause, Exception):  # an interrupt is the caller's
            raise cause
        error = RunError(f"it failed with status {status}{': ' + text if text else ''}", place=self.name)
        error.__cause__ = cause
        return error


class PackedFunc(NativeFunc[CallFrame]):
    """A compiled function with any arguments, behind the classic convention: a ``TVMBackendPackedCFunc``.

    Arguments are integers, floats, strings, bytes, None, devices and arrays: numpy's, which must be writable, and those
    of any DLPack library, which are passed in place. A result is an integer, a float, a string, None, or the address of
    an opaque object as an integer. Threads may call at once, if the function itself allows it.
    """

    def __call__(self, *args: Any) -> Any:
        """Call the function; raise InputError for unsupported arguments, RunError with text and cause if it fails."""
        unused = self._frames[len(args)]
        try:
            frame = unused.pop()
        except IndexError:
            frame = CallFrame(len(args))
        try:
            _keep = frame.fill(args, self.name, self._reads)
            status = self._function(*frame.arguments)
            if status != 0:
                frame.result_code.value = c_abi.NULL
                raise self.failure(status)
            return None if frame.result_code.value == c_abi.NULL else frame.take_result()
        finally:
            unused.append(frame)

    def prepare(self, tensors: Sequence[c_abi.DLTensor]) -> partial[int]:
        """Return a call on fixed tensors that returns the status; their addresses may change between calls."""
        frame = CallFrame(len(tensors))
        for index, tensor in enumerate(tensors):
            frame.values[index], frame.codes[index] = ctypes.addressof(tensor), c_abi.TENSOR
        call = partial(self._function, *frame.arguments)
        call.keep = (self, tensors, frame)  # type: ignore[attr-defined]  # partials take attributes
        return call

    def failure(self, status: int) -> RunError:
        """Return the error of a call that returned `status`."""
        return self._reported(status)


class FfiFunc(NativeFunc[FfiFrame]):
    """A function as `PackedFunc`, but behind the convention of tvm-ffi: a ``TVMFFISafeCallType``.

    Tensors that it returns become arrays, arrays of objects lists. The package of tvm-ffi is needed only if the
    function itself calls it.
    """

    def __call__(self, *args: Any) -> Any:
        """Call the function; raise InputError for unsupported or rejected arguments, RunError for any other failure."""
        unused = self._frames[len(args)]
        try:
            frame = unused.pop()
        except IndexError:
            frame = FfiFrame(len(args))
        try:
            _keep = frame.fill(args, self.name, self._reads)
            status = self._function(*frame.arguments)
            if status != 0:
                raise self.failure(status)
            return None if frame.result.type_index == NONE else take_result(frame.result, self.name)
        finally:
            unused.append(frame)

    def failure(self, status: int) -> MlfcError:
        """Return the error of a call that returned `status`."""
        raised = take_raised()
        if raised is None:
            return self._reported(status)
        kind, message = raised
        if kind in _OF_ARGUMENTS:
            # ours name the function themselves
            return InputError(message, place=None if self.name in message else self.name)
        return RunError(f"{kind}: {message}", place=self.name)
