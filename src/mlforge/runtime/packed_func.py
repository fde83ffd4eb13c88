"""Functions of compiled modules, called through the classic packed ABI."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlforge.errors import InputError, RunError
from mlforge.runtime import c_abi
from mlforge.runtime.device import Device, cpu

_PACKED = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


class PackedFunc:
    """A compiled function that takes any arguments.

    Parameters
    ----------
    address : int
        Of a ``TVMBackendPackedCFunc``.
    name : str
        For messages.
    last_error : callable, optional
        Returns the text of the last failure, where the library keeps one.
    owner : object
        What keeps the code loaded.

    Notes
    -----
    Arguments are integers, floats, strings, bytes, None and arrays: numpy's, which may be written to, and those of any
    DLPack library, which are passed where they lie. A result is an integer, a float, a string, None, or the address
    of something opaque as an integer.
    """

    def __init__(
        self, address: int, name: str, *, last_error: Callable[[], str] | None = None, owner: object = None
    ) -> None:
        self.name = name
        self._function = _PACKED(address)
        self._last_error = last_error
        self._owner = owner

    def __call__(self, *args: Any) -> Any:
        """Call the function.

        Raises
        ------
        InputError
            For an argument that the ABI has no form for.
        RunError
            If the function reports failure; with its text.
        """
        prepared = PreparedCall(self, args)
        prepared()
        return prepared.result

    def prepare(self, tensors: Sequence[c_abi.DLTensor]) -> partial[int]:
        """Return a call on fixed tensors, whose addresses may change between calls; it returns the status."""
        count = len(tensors)
        values, codes = (c_abi.TVMValue * max(1, count))(), (ctypes.c_int32 * max(1, count))()
        for index, tensor in enumerate(tensors):
            values[index].v_handle, codes[index] = ctypes.addressof(tensor), c_abi.TENSOR
        result, code = c_abi.TVMValue(), ctypes.c_int32(c_abi.NULL)
        call = partial(self._function, values, codes, count, ctypes.byref(result), ctypes.byref(code), None)
        call.keep = (self, tensors, values, codes, result, code)  # type: ignore[attr-defined]  # partials take attributes
        return call

    def failure(self, status: int) -> RunError:
        """Return the error of a call that returned `status`."""
        text = self._last_error() if self._last_error is not None else ""
        return RunError(f"it failed with status {status}{': ' + text if text else ''}", place=self.name)


class PreparedCall:
    """A function with its arguments in the form of the ABI."""

    def __init__(self, function: PackedFunc, args: Sequence[Any]) -> None:
        self._packed = function
        self._values = (c_abi.TVMValue * max(1, len(args)))()
        self._codes = (ctypes.c_int32 * max(1, len(args)))()
        self._count = len(args)
        self._keep: list[Any] = []
        self._result, self._code = c_abi.TVMValue(), ctypes.c_int32(c_abi.NULL)
        for index, arg in enumerate(args):
            self._set(index, arg)

    def _set(self, index: int, arg: Any) -> None:
        value, code = self._values[index], c_abi.NULL
        if isinstance(arg, (bool, int, np.integer, np.bool_)):
            if not -(1 << 63) <= arg < 1 << 63:
                raise InputError(f"argument {index} does not fit 64 bits", place=self._packed.name)
            value.v_int64, code = int(arg), c_abi.INT
        elif isinstance(arg, (float, np.floating)):
            value.v_float64, code = float(arg), c_abi.FLOAT
        elif isinstance(arg, str):
            data = ctypes.create_string_buffer(arg.encode())
            value.v_handle, code = self._kept(data), c_abi.STRING
        elif isinstance(arg, (bytes, bytearray)):
            text = bytes(arg)
            self._keep.append(text)
            value.v_handle, code = self._kept(c_abi.TVMByteArray(text, len(text))), c_abi.BYTES
        elif isinstance(arg, np.ndarray) or hasattr(arg, "__dlpack__"):
            array = arg if isinstance(arg, np.ndarray) else np.from_dlpack(arg)
            self._keep.append(array)
            value.v_handle, code = self._kept(c_abi.array_tensor(array, cpu())), c_abi.TENSOR
        elif isinstance(arg, Device):
            value.v_int64 = int.from_bytes(bytes(c_abi.DLDevice(arg.type_code, arg.index)), "little")
            code = c_abi.DEVICE
        elif arg is not None:
            raise InputError(
                f"argument {index} is a {type(arg).__name__}, which compiled functions cannot take",
                place=self._packed.name,
                next_step="Give numbers, strings, bytes, None or arrays",
            )
        self._codes[index] = code

    def _kept(self, value: Any) -> int:
        self._keep.append(value)
        return ctypes.addressof(value)

    def __call__(self) -> None:
        """Call; raise RunError if the function reports failure."""
        self._result.v_int64, self._code.value = 0, c_abi.NULL
        status = self._packed._function(
            self._values,
            self._codes,
            self._count,
            ctypes.byref(self._result),
            ctypes.byref(self._code),
            None,
        )
        if status != 0:
            raise self._packed.failure(status)

    @property
    def result(self) -> Any:
        """What the last call returned."""
        code = self._code.value
        if code == c_abi.FLOAT:
            return self._result.v_float64
        if code == c_abi.STRING:
            text = self._result.v_str
            return None if text is None else text.decode(errors="replace")
        return None if code == c_abi.NULL else self._result.v_int64
