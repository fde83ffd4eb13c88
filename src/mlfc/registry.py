"""One idiom for everything found by a string key: operators, targets, boards, module kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mlfc.errors import InternalError, OptionError

T = TypeVar("T")
_FEW = 8


class Registry(Generic[T]):
    """A table from string keys to entries, filled by decorators or calls.

    Parameters
    ----------
    kind : str
        What the entries are, in the singular, for messages: "operator", "target".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, key: str, entry: T) -> T:
        """Add an entry. A key given twice is a bug of the program and raises InternalError."""
        if key in self._entries:
            raise InternalError(f"{self.kind} '{key}' is registered twice")
        self._entries[key] = entry
        return entry

    def register(self, key: str) -> Callable[[T], T]:
        """Return a decorator that adds what it decorates under `key`."""
        return lambda entry: self.add(key, entry)

    def get(self, key: str) -> T:
        """Return the entry of `key`; if there is none raise OptionError, with near names or the few that there are."""
        if key not in self._entries:
            near = self.near(key)
            hint = f"Did you mean {' or '.join(near)}?" if near else None
            if not near and 0 < len(self) <= _FEW:
                hint = f"There are: {', '.join(self)}"
            raise OptionError(f"there is no {self.kind} '{key}'", next_step=hint)
        return self._entries[key]

    def near(self, key: str) -> list[str]:
        """Return up to three registered keys that look like `key`."""
        import difflib  # only a miss needs it

        return difflib.get_close_matches(key, self._entries, n=3)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
