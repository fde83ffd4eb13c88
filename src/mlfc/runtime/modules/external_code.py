"""Code that an external generator made of a part of a model: C or an object, built together with the module's own."""

from __future__ import annotations

from collections.abc import Mapping

from mlfc.errors import OptionError
from mlfc.runtime.modules.module import Function, Module
from mlfc.support.content import Data, to_bytes

SUFFIXES = ("c", "o")
"""Of the files that are such code."""


class ExternalCode(Module):
    """A file of code as a module; who imports it builds it.

    Parameters
    ----------
    generator : str
        Who wrote it: the module's type key.
    data : Data
        C or a relocatable object.
    suffix : str
        One of `SUFFIXES`.
    name : str
        Of the file, without the suffix; no other code that is built with it has this name.

    Attributes
    ----------
    files : mapping of str to Data
        The file, by its path among the code that it is built with.
    """

    is_binary_serializable = True
    is_dso_exportable = True

    def __init__(self, generator: str, data: Data, suffix: str, name: str) -> None:
        super().__init__()
        self.type_key = generator
        self._data = data
        self._suffix = suffix
        self.files: Mapping[str, Data] = {f"external/{name}.{suffix}": data}

    @property
    def format(self) -> str:
        """``c`` or ``o``."""
        return self._suffix

    def get_source(self) -> str:
        """Return its text; empty for an object."""
        return to_bytes(self._data).decode() if self._suffix == "c" else ""

    def save_to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return to_bytes(self._data)

    def get_function(self, name: str, query_imports: bool = False) -> Function:
        """Raise OptionError: the code is part of the module that imports it."""
        raise OptionError(
            f"'{name}' cannot be looked up in code that is not built by itself",
            place=f"module '{self.type_key}'",
            next_step="Look it up in the module that imports this one" if not query_imports else None,
        )
