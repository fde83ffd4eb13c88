"""Functions of compiled modules, called through the classic packed ABI."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

from mlfc.errors import RunError
from mlfc.runtime.ffi.call_values import CallFrame
from mlfc.runtime.ffi.native_func import NativeFunc
from mlfc.runtime.tensor import c_abi


class PackedFunc(NativeFunc[CallFrame]):
    """A compiled function that takes any arguments.

    Parameters are those of `NativeFunc`; the address is that of a ``TVMBackendPackedCFunc``.

    Notes
    -----
    Arguments are integers, floats, strings, bytes, None, devices and arrays: numpy's, which may be written to, and
    those of any DLPack library, which are passed where they lie. A result is an integer, a float, a string, None, or
    the address of something opaque as an integer. Threads may call at once, if the function itself allows it.
    """

    def __call__(self, *args: Any) -> Any:
        """Call the function.

        Raises
        ------
        InputError
            For an argument that the ABI has no form for.
        RunError
            If the function reports failure; with its text, and where a function of Python failed, with that cause.
        """
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
        """Return a call on fixed tensors, whose addresses may change between calls; it returns the status."""
        frame = CallFrame(len(tensors))
        for index, tensor in enumerate(tensors):
            frame.values[index], frame.codes[index] = ctypes.addressof(tensor), c_abi.TENSOR
        call = partial(self._function, *frame.arguments)
        call.keep = (self, tensors, frame)  # type: ignore[attr-defined]  # partials take attributes
        return call

    def failure(self, status: int) -> RunError:
        """Return the error of a call that returned `status`."""
        return self._reported(status)
