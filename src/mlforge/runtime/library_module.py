"""Shared libraries of packed functions as modules."""

from __future__ import annotations

import ctypes
import os
from functools import cached_property

from mlforge.errors import ToolchainError
from mlforge.runtime.module import Function, Module
from mlforge.runtime.packed_func import PackedFunc

_SYSTEM_LIB = "TVMSystemLibEntryPoint"


class _FuncRegistry(ctypes.Structure):
    _fields_ = (("names", ctypes.c_void_p), ("functions", ctypes.POINTER(ctypes.c_void_p)))


class _SystemLib(ctypes.Structure):
    _fields_ = (("registry", ctypes.POINTER(_FuncRegistry)),)


class _SymbolPlace(ctypes.Structure):
    """``Dl_info``: the file that an address lies in, where it is mapped, and the nearest symbol."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


# systems without it load libraries in other ways, in which only own symbols are found
_dladdr = getattr(ctypes.CDLL(None), "dladdr", None) if os.name == "posix" else None


class LibraryModule(Module):
    """A loaded shared library; loading runs its code.

    Functions are found by symbol and, where the library has a function registry as TVM's C runtime uses it, by
    their names there: these may be static functions.

    Parameters
    ----------
    path : path

    Raises
    ------
    ToolchainError
        If it does not load.
    """

    type_key = "library"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = os.fspath(path)
        try:
            self.library = ctypes.CDLL(self.path)
        except OSError as error:
            raise ToolchainError(
                f"the compiled code does not load: {error}",
                place=self.path,
                next_step="Remove this file and load the archive again",
            ) from error

    @property
    def is_runnable(self) -> bool:
        """A library has functions."""
        return True

    @property
    def format(self) -> str:
        """``so``."""
        return "so"

    @property
    def registered_names(self) -> tuple[str, ...]:
        """The functions of the library's registry, in its order; empty without a registry."""
        return tuple(self._registered)

    def find_function(self, name: str) -> Function | None:
        """Return a packed function by its symbol or its name in the registry."""
        address = self.address(name)
        if address is None:
            address = self._registered.get(name)
        return None if address is None else PackedFunc(address, name, last_error=self._last_error, owner=self)

    def address(self, symbol: str) -> int | None:
        """Return where a symbol lies, or None."""
        if not symbol or "\0" in symbol:
            return None
        try:
            address = ctypes.addressof(ctypes.c_char.in_dll(self.library, symbol))
        except ValueError:
            return None
        return address if self._defines(address) else None

    def _defines(self, address: int) -> bool:
        """Tell whether an address lies in this library: the symbols of libraries that it needs are found too."""
        place = _SymbolPlace()
        if _dladdr is None or not _dladdr(ctypes.c_void_p(address), ctypes.byref(place)):
            return True
        return os.path.realpath(place.file or b"") == os.path.realpath(os.fsencode(self.path))

    def _last_error(self) -> str:
        if self.address("TVMGetLastError") is None:
            return ""
        function = self.library.TVMGetLastError
        function.restype = ctypes.c_char_p
        text: bytes | None = function()
        return (text or b"").decode(errors="replace")

    @cached_property
    def _registered(self) -> dict[str, int]:
        if self.address(_SYSTEM_LIB) is None:
            return {}
        entry = self.library[_SYSTEM_LIB]
        entry.restype = ctypes.POINTER(_SystemLib)
        registry = entry().contents.registry.contents
        at = registry.names
        low, high = ctypes.string_at(at, 2)
        # TVM 0.8 wrote one byte: what would be the high byte of the count is a letter of the first name
        has_one_byte = high >= ord("A")
        count = low if has_one_byte else low | high << 8
        at += 1 if has_one_byte else 2
        found = {}
        for index in range(count):
            name = ctypes.string_at(at)
            at += len(name) + 1
            found[name.decode(errors="replace")] = registry.functions[index] or 0
        return found
