"""Code in the memory of this process, wherever it came from."""

from __future__ import annotations

from typing import Protocol


class NativeCode(Protocol):
    """Functions and variables by their symbols; the object keeps them in memory."""

    @property
    def place(self) -> str:
        """What messages call it: no other code in the process has the same name."""

    def address(self, symbol: str) -> int | None:
        """Return where a symbol lies, or None."""
