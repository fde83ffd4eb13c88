"""A model's native code: its kernels and constants, read from the table that the library exports."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from mlfc.errors import ArchiveError, ToolchainError
from mlfc.runtime.executors.vm.failures import Code, Fault, run_error
from mlfc.support.bytecode.executable import Executable
from mlfc.support.bytecode.instructions import CPU
from mlfc.support.dtypes import nbytes

Launch: TypeAlias = Callable[[bytes, bytes], int]
"""Takes the bytes of C's array of buffers, and those of its array of numbers."""
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)


class HasSymbols(Protocol):
    """Code in memory: a loaded library, or code made in this process."""

    def address(self, symbol: str) -> int | None:
        """Return the address of a symbol, or None."""


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64))


class _Entry(ctypes.Structure):
    _fields_ = (
        ("launch", ctypes.c_void_p),
        ("buffers", ctypes.c_uint32),
        ("reads", ctypes.c_uint32),
        ("numbers", ctypes.c_uint32),
    )


class _Code(ctypes.Structure):
    _fields_ = (
        ("kernel_count", ctypes.c_uint32),
        ("kernels", ctypes.POINTER(_Entry)),
        ("constant_count", ctypes.c_uint32),
        ("constants", ctypes.POINTER(_Buffer)),
    )


def symbol_of(name: str) -> str:
    """Return the symbol of a module's table."""
    return f"tvmgen_{name}_vm_code"


def devices_symbol_of(name: str) -> str:
    """Return the symbol of the device types of a module's kernels."""
    return f"tvmgen_{name}_vm_devices"


class NativeTables:
    """The kernels and constants of an executable.

    Attributes
    ----------
    address : int
        Of the table.
    kernels : sequence of callable
        By number.
    devices : tuple of int
        The device type of each kernel's buffers, by number: code without the table of them is the host's.
    constants : tuple of (int, int)
        Addresses and bytes, by number.

    Raises
    ------
    ToolchainError
        If the code does not export the table.
    ArchiveError
        If it is that of another executable.
    """

    def __init__(self, executable: Executable, code: HasSymbols) -> None:
        address = code.address(symbol_of(executable.name))
        if address is None:
            raise ToolchainError(
                f"the code does not export '{symbol_of(executable.name)}'",
                place=executable.name,
                next_step="Load the library that was built of this model",
            )
        self.address = address
        self._keep = code
        table = _Code.from_address(address)
        self._check(executable, table)
        self.kernels: Sequence[Launch] = tuple(
            _LAUNCH(table.kernels[number].launch) for number in range(table.kernel_count)
        )
        devices = code.address(devices_symbol_of(executable.name))
        self.devices: tuple[int, ...] = (
            (CPU,) * table.kernel_count if devices is None
            else tuple((ctypes.c_uint32 * table.kernel_count).from_address(devices))
        )  # fmt: skip
        self.constants = tuple(
            (int(table.constants[number].data or 0), int(table.constants[number].bytes))
            for number in range(table.constant_count)
        )

    @staticmethod
    def _check(executable: Executable, table: Any) -> None:
        if (table.kernel_count, table.constant_count) != (len(executable.kernels), len(executable.constants)):
            raise _other(executable, -1, -1, None)
        for number, kernel in enumerate(executable.kernels):
            entry = table.kernels[number]
            if (entry.buffers, entry.reads, entry.numbers) != (kernel.buffers, kernel.reads, kernel.numbers):
                raise _other(executable, number, -1, kernel.name)
        for number, constant in enumerate(executable.constants):
            size = nbytes(constant.dtype)
            for extent in constant.shape:
                size *= extent
            if table.constants[number].bytes != size:
                raise _other(executable, -1, number, constant.name)


def _other(executable: Executable, kernel: int, constant: int, name: str | None) -> Exception:
    error = run_error(executable, Fault(Code.BAD_NATIVE, kernel, constant, text=name), None)
    assert isinstance(error, ArchiveError)
    return error
