"""Loaded models and modules as values: pickled and copied by what they were loaded from, and by their state."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mlfc.errors import InputError

Reduced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any] | None]


@dataclass(frozen=True, repr=False)
class LoadedOrigin:
    """What something was loaded from.

    Attributes
    ----------
    opener : callable
        Loads it: takes a path or bytes and `arguments`.
    source : str or bytes
        A file, or its content.
    arguments : tuple
    identity : tuple of int, optional
        Which file it was.
    """

    opener: Callable[..., Any]
    source: str | bytes
    arguments: tuple[Any, ...] = ()
    identity: tuple[int, ...] | None = None

    @classmethod
    def of(cls, opener: Callable[..., Any], source: Any, *arguments: Any) -> LoadedOrigin | None:
        """Return the origin of what is loaded from a path or bytes; None for memory that may change."""
        if isinstance(source, bytes):
            return cls(opener, source, arguments)
        if not isinstance(source, (str, os.PathLike)):
            return None
        path = Path(source).absolute()
        return cls(opener, str(path), arguments, _identity(path))

    def opened(self) -> Any:
        """Load it again."""
        self._check()
        return self.opener(self.source, *self.arguments)

    def reduced(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what loads it elsewhere, by its content."""
        self._check()
        data = self.source if isinstance(self.source, bytes) else Path(self.source).read_bytes()
        return self.opener, (data, *self.arguments)

    def _check(self) -> None:
        """Raise InputError if the file is not the one that was loaded."""
        if isinstance(self.source, str) and _identity(Path(self.source)) != self.identity:
            raise InputError(
                "the file has changed, or is gone, since it was loaded", place=self.source, next_step="Load it again"
            )


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


class Restorable:
    """A loaded model, which can be pickled and copied if its origin is known.

    Restoring loads the content again, with all checks of loading, and sets the states that the model had. A copy has
    states of its own.
    """

    origin: LoadedOrigin | None = None

    def __reduce__(self) -> Reduced:
        return (*self._known_origin().reduced(), kept_by(self))

    def __setstate__(self, kept: Mapping[str, Any]) -> None:
        restore(self, kept)

    def __copy__(self) -> Any:
        return restore(self._known_origin().opened(), kept_by(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()

    def _known_origin(self) -> LoadedOrigin:
        if self.origin is None:
            raise TypeError(
                f"cannot pickle or copy this {type(self).__name__}, which was not loaded from a file or bytes. "
                "Pickle what mlfc.compile or mlfc.load returned"
            )
        return self.origin


def kept_by(model: Any) -> dict[str, Any]:
    """Return what a model has besides its code: its states, and limits that were set."""
    kept: dict[str, Any] = {"state": dict(model.state)} if len(model.state) else {}
    limits = getattr(model, "limits", None)
    return {**kept, "limits": limits} if limits is not None else kept


def restore(model: Any, kept: Mapping[str, Any]) -> Any:
    """Give a model what `kept_by` returned; return the model."""
    if "limits" in kept:
        model.set_limits(**kept["limits"])
    if "state" in kept:
        model.state.update(kept["state"])
    return model
