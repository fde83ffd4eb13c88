"""One idiom for everything found by a string key: operators, targets, boards, module kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import RLock
from typing import Generic, TypeVar

from mlfc.errors import InternalError, OptionError, nearest, unknown

T = TypeVar("T")
_FILLING = RLock()


class Registry(Generic[T]):
    """A table from string keys to entries, filled by decorators or calls.

    `kind`: what the entries are, in the singular, for messages: "operator", "target".
    `package`: every module of this package is imported before the table is first read. So a package on a higher layer
    fills tables of lower ones, which never import it by name, and a new module of it is found without being listed.
    `part`: of those modules that are packages themselves, only this module of theirs is imported, if they have it.
    """

    def __init__(self, kind: str, package: str | None = None, part: str | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._package, self._part = package, part
        self._is_filling = False

    def _filled(self) -> dict[str, T]:
        if self._package is not None:
            with _FILLING:
                # modules that are being imported may look here, too
                if self._package is not None and not self._is_filling:
                    self._is_filling = True
                    _import_all(self._package, self._part)
                    self._package = None
        return self._entries

    def add(self, key: str, entry: T) -> T:
        """Add an entry. A key given twice is a bug of the program and raises InternalError."""
        if key in self._entries:
            raise InternalError(f"{self.kind} '{key}' is registered twice")
        self._entries[key] = entry
        return entry

    def setdefault(self, key: str, entry: T) -> T:
        """Return the entry of a key, after adding this one if there was none; fills nothing but that."""
        return self._entries.setdefault(key, entry)

    def register(self, key: str) -> Callable[[T], T]:
        """Return a decorator that adds what it decorates under `key`."""
        return lambda entry: self.add(key, entry)

    def get(self, key: str) -> T:
        """Return the entry of `key`; raise OptionError with the nearest names if there is none."""
        if key not in self._filled():
            raise OptionError(unknown(self.kind, key, self._filled()))
        return self._filled()[key]

    def near(self, key: str) -> list[str]:
        """Return up to three registered keys that look like `key`."""
        return nearest(key, self._filled())

    def __contains__(self, key: object) -> bool:
        return key in self._filled()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._filled()))

    def __len__(self) -> int:
        return len(self._filled())


def _import_all(package: str, part: str | None) -> None:
    import importlib.util
    import pkgutil

    for found in sorted(pkgutil.iter_modules(importlib.import_module(package).__path__), key=lambda item: item.name):
        name = f"{package}.{found.name}"
        if part is None or not found.ispkg:
            importlib.import_module(name)
        elif importlib.util.find_spec(f"{name}.{part}") is not None:
            importlib.import_module(f"{name}.{part}")
