"""Code that is part of the process itself: linked statically into its program, or into a library that all see."""

from __future__ import annotations

from functools import cache

from mlfc.errors import ArchiveError, OptionError, ToolchainError
from mlfc.runtime.ffi.ffi_func import FFI_PREFIX
from mlfc.runtime.libraries.library_module import LibraryModule
from mlfc.runtime.libraries.shared_library import blob_of, model_of
from mlfc.runtime.modules.blob import read_tree
from mlfc.runtime.modules.module import Module
from mlfc.runtime.modules.runnable import HasModel, Runnable

_symbols: dict[str, int] = {}
# what the system's loader calls the program
_PROGRAM = ""
_PLACE = "system library"


def register_system_symbol(name: str, address: int) -> None:
    """Make a function or a variable of this process known to `system_library` that its loader does not find.

    An extension module whose symbols are its own registers what it has when it is imported.

    Parameters
    ----------
    name : str
        As the code calls it, a prefix included.
    address : int
        Where it lies, as long as the process runs.

    Raises
    ------
    OptionError
        If it lies nowhere, or the name stands for something else already.
    """
    if not name or address <= 0 or _symbols.get(name, address) != address:
        raise OptionError(
            f"the symbol '{name}' cannot be registered at {address:#x}",
            next_step="Give each symbol of the process a name of its own; a prefix keeps those of two models apart",
        )
    _symbols[name] = address
    system_library.cache_clear()


class SystemLibrary(LibraryModule, HasModel):
    """What is linked into this process as a module.

    Parameters
    ----------
    prefix : str
        What its symbols start with; those without it are found, too.
    """

    type_key = "system_lib"

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.place = f"{_PLACE} '{prefix}'" if prefix else _PLACE
        try:
            super().__init__(_PROGRAM)
        except ToolchainError as error:
            raise ArchiveError(
                f"this system does not let a program look into itself: {error.__cause__}", place=self.place
            ) from error

    def address(self, symbol: str) -> int | None:
        """Return where a symbol lies, or None."""
        for name in dict.fromkeys((self._prefixed(symbol), symbol)):
            found = _symbols.get(name) or super().address(name)
            if found is not None:
                return found
        return None

    def _prefixed(self, symbol: str) -> str:
        # tvm-ffi's mark of functions comes first
        if symbol.startswith(FFI_PREFIX) and not symbol.startswith(f"{FFI_PREFIX}_"):
            return f"{FFI_PREFIX}{self._prefix}{symbol.removeprefix(FFI_PREFIX)}"
        return self._prefix + symbol

    def _defines(self, address: int) -> bool:
        return bool(address)

    @property
    def model(self) -> Runnable:
        """The model that is linked in; as `SharedLibrary.model`."""
        return model_of(self, None, self.place)


@cache
def system_library(prefix: str = "") -> Module:
    """Return the root of the tree that is linked into this process, the `SystemLibrary` itself where there is no tree.

    Symbols are found that the process shows to all: of a program linked with ``-rdynamic``, of a library that was
    loaded with ``RTLD_GLOBAL``; and those of `register_system_symbol`.

    Parameters
    ----------
    prefix : str
        What its symbols start with.

    Raises
    ------
    ArchiveError
        If its tree breaks the format or has modules that nothing here can read.
    """
    library = SystemLibrary(prefix)
    found = blob_of(library)
    if found is None:
        return library
    abi, view = found
    return read_tree(view, library, abi, place=library.place)
