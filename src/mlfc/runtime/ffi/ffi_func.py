"""Functions of libraries that are called through the convention of tvm-ffi."""

from __future__ import annotations

from typing import Any

from mlfc.errors import InputError, MlfcError, RunError
from mlfc.runtime.ffi.ffi_host import take_raised
from mlfc.runtime.ffi.ffi_values import NONE, FfiFrame, take_result
from mlfc.runtime.ffi.native_func import NativeFunc

FFI_PREFIX = "__tvm_ffi_"
"""What the symbols of functions start with."""

_OF_ARGUMENTS = ("TypeError", "ValueError", "IndexError", "KeyError", "AttributeError")


class FfiFunc(NativeFunc[FfiFrame]):
    """A function of a library, as `PackedFunc`, but behind the other convention.

    Parameters are those of `NativeFunc`; the address is that of a ``TVMFFISafeCallType``.

    Notes
    -----
    Arguments are as those of `PackedFunc`; tensors that it returns come as arrays, arrays of objects as lists. The
    package of tvm-ffi is needed only where the function itself calls it.
    """

    def __call__(self, *args: Any) -> Any:
        """Call the function.

        Raises
        ------
        InputError
            For an argument that has no form in the convention, or that the function does not take.
        RunError
            If the function fails for another reason.
        """
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
