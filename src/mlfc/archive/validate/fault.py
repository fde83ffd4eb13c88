"""What validation finds."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.errors import MlfcError


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with an archive."""

    # what was looked at: ``metadata``, ``manifest``, ``layout``, ``code``, ``plan``, ``graph``, ``parameters``,
    # ``relay`` or ``modules``
    check: str
    place: str  # the file, and where in it
    cause: str

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}" if self.place else self.cause


def fault_of_text(check: str, text: str) -> Fault:
    """Return the fault that a text ``place: cause`` describes."""
    place, separator, cause = text.partition(": ")
    return Fault(check, place, cause) if separator else Fault(check, "", text)


def fault_of_error(check: str, place: str, error: MlfcError) -> Fault:
    """Return the fault that an error of a reader is.

    `place`: the file in the archive. The error may name it too, behind the path of the archive and before the very
    spot.
    """
    where = error.place or place
    start = where.find(place)
    return Fault(check, where[start:] if start >= 0 else f"{place}: {where}", error.cause)
