"""Compiled models as bytes, which do not need the compiler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlfc.archive.loading import load
from mlfc.archive.read.load import kind_of_artifact
from mlfc.errors import OptionError
from mlfc.runtime.modules.runnable import HasModel, Reduced, Runnable, kept_by, restore
from mlfc.support.atomic import atomic_file
from mlfc.support.text import Displayed


class StoredModel(Displayed, HasModel):
    """A compiled model without its source: the result of unpickling a `CompiledModel`.

    Parameters
    ----------
    name : str
        Name of the module.
    data : bytes
        A library, or an archive if no compiler could link one.

    Raises
    ------
    MlfcError
        As for `load`.
    """

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self._data = data
        self._model = load(data)

    @property
    def model(self) -> Runnable:
        """The model, loaded in this process."""
        return self._model

    def _facts(self) -> Mapping[str, object]:
        return {"name": self.name, "inputs": self.inputs, "outputs": self.outputs, "bytes": f"{len(self._data):,}"}

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the archive; raise OptionError if this is a library."""
        return self._written(path, "archive")

    def export_library(self, path: str | os.PathLike[str]) -> Path:
        """Write the library; raise OptionError if this is an archive."""
        return self._written(path, "library")

    def _written(self, path: str | os.PathLike[str], kind: str) -> Path:
        found = kind_of_artifact(self._data)
        if found != kind:
            raise OptionError(
                f"expected an {kind}, got a {found}" if kind == "archive" else f"expected a {kind}, got an {found}",
                place=self.name,
                next_step="Compile the model again, or export it before it is pickled",
            )
        with atomic_file(Path(path)) as file:
            file.write(self._data)
        return Path(path)

    def __reduce__(self) -> Reduced:
        return StoredModel, (self.name, self._data), kept_by(self._model)

    def __setstate__(self, kept: Mapping[str, Any]) -> None:
        restore(self._model, kept)

    def __copy__(self) -> StoredModel:
        made = StoredModel(self.name, self._data)
        restore(made.model, kept_by(self._model))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> StoredModel:
        return self.__copy__()
