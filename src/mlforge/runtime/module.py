"""Modules: code, or data that some runtime can run, and the modules that they import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, TypeAlias

from mlforge.errors import OptionError
from mlforge.registry import Registry

Function: TypeAlias = Callable[..., Any]
Loader: TypeAlias = Callable[[bytes], "Module"]

loaders: Registry[Loader] = Registry("kind of module")
"""What makes modules of their stored bytes, by type key."""

# kinds that come with mlforge are imported when an archive holds one
_BUILT_IN = {"onnxruntime": "mlforge.runtime.onnxruntime_module"}


class Module:
    """A module of functions. What it can do is asked of its abilities, never of its class.

    A kind of one's own overrides `type_key`, `find_function` and, if it can be stored, `save_to_bytes`; and registers
    a loader with `register_loader`.

    Attributes
    ----------
    type_key : str
        Its kind, in TVM's words where TVM has one: ``c``, ``library``, ``GraphExecutorFactory``, ...
    """

    type_key = "module"

    def __init__(self) -> None:
        self._imports: list[Module] = []

    @property
    def is_runnable(self) -> bool:
        """Whether it has functions that can be called in this process."""
        return False

    @property
    def is_binary_serializable(self) -> bool:
        """Whether `save_to_bytes` works."""
        return False

    @property
    def is_dso_exportable(self) -> bool:
        """Whether it is code that a compiler and linker make part of a library."""
        return False

    @property
    def format(self) -> str:
        """The suffix of the file that holds it."""
        return "bin"

    @property
    def imported_modules(self) -> tuple[Module, ...]:
        """The modules whose functions this one may call, in order."""
        return tuple(self._imports)

    def import_module(self, module: Module) -> None:
        """Add a module to the imports.

        Raises
        ------
        OptionError
            If it imports this one already, itself or through others: trees have no cycles.
        """
        if any(member is self for member in module.walk()):
            raise OptionError(
                f"the module '{module.type_key}' imports this '{self.type_key}' module already",
                next_step="Import in one direction only",
            )
        self._imports.append(module)

    def walk(self) -> Iterator[Module]:
        """Yield this module and all that it imports, depth first, each once."""
        seen: set[int] = set()
        stack: list[Module] = [self]
        while stack:
            module = stack.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield module
                stack.extend(reversed(module.imported_modules))

    def find_function(self, name: str) -> Function | None:  # noqa: ARG002  (kinds override it)
        """Return a function of this very module, or None."""
        return None

    def implements_function(self, name: str, query_imports: bool = False) -> bool:
        """Tell whether there is such a function, here or, if asked, in the imports."""
        return self._lookup(name, query_imports) is not None

    def get_function(self, name: str, query_imports: bool = False) -> Function:
        """Return a function.

        Parameters
        ----------
        name : str
        query_imports : bool
            Search the imports too, depth first.

        Raises
        ------
        OptionError
            If there is none of this name.
        """
        function = self._lookup(name, query_imports)
        if function is None:
            place = f"module '{self.type_key}'" + (" and its imports" if query_imports else "")
            raise OptionError(f"there is no function '{name}'", place=place)
        return function

    def _lookup(self, name: str, query_imports: bool) -> Function | None:
        for module in self.walk() if query_imports else (self,):
            function = module.find_function(name)
            if function is not None:
                return function
        return None

    def __getitem__(self, name: str) -> Function:
        return self.get_function(name)

    def get_source(self) -> str:
        """Return the module as text; empty for one that has none."""
        return ""

    def save_to_bytes(self) -> bytes:
        """Return what its loader makes it of again; raise OptionError unless `is_binary_serializable`."""
        raise OptionError(
            f"modules of the kind '{self.type_key}' cannot be stored as bytes",
            next_step="Export the code that they were made of",
        )


class OpaqueModule(Module):
    """A module of a kind that nothing here can load: it is kept, so that exporting again loses nothing.

    Parameters
    ----------
    type_key : str
    data : bytes
        As stored.
    suffix : str
        Of the file that it came from, without the dot.
    """

    def __init__(self, type_key: str, data: bytes, suffix: str = "bin") -> None:
        super().__init__()
        self.type_key = type_key
        self._data = data
        self._suffix = suffix

    @property
    def is_binary_serializable(self) -> bool:
        """It is its bytes."""
        return True

    @property
    def format(self) -> str:
        """The suffix of the file that it came from."""
        return self._suffix

    def save_to_bytes(self) -> bytes:
        """Return the bytes as they were."""
        return self._data

    def get_function(self, name: str, query_imports: bool = False) -> Function:
        """Raise OptionError that says which loader is missing, unless an import has the function."""
        function = self._lookup(name, query_imports)
        if function is None:
            raise OptionError(
                f"'{name}' cannot be looked up: there is no loader for modules of the kind '{self.type_key}'",
                next_step=f"Register one with mlforge.runtime.register_loader('{self.type_key}')",
            )
        return function


def register_loader(type_key: str) -> Callable[[Loader], Loader]:
    """Return a decorator that makes a function the loader of a kind of module.

    The function takes the stored bytes, which nobody has checked, and returns the module without its imports.

    Raises
    ------
    OptionError
        If the kind has a loader already.
    """
    if type_key in loaders:
        raise OptionError(f"there is a loader for modules of the kind '{type_key}' already")
    return loaders.register(type_key)


def load_from_bytes(type_key: str, data: bytes, suffix: str = "bin") -> Module:
    """Return the module that was stored as `data`; an `OpaqueModule` where no loader knows its kind."""
    if type_key not in loaders and type_key in _BUILT_IN:
        import_module(_BUILT_IN[type_key])
    if type_key not in loaders:
        return OpaqueModule(type_key, data, suffix)
    return loaders.get(type_key)(data)
