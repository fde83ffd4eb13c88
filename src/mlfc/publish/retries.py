"""Retries of transient failures: a few attempts, with increasing pauses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from mlfc.errors import RegistryError

PAUSES = (0.5, 1.0, 2.0)
"""Seconds before the second, third and fourth (last) attempt."""
LONGEST_PAUSE = 30.0
"""Maximum seconds that a registry may ask to wait."""
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Status codes of requests that may succeed when repeated."""
_Result = TypeVar("_Result")


class TransientError(RegistryError):
    """A failure that may not occur in another attempt.

    Attributes
    ----------
    pause : float
        Seconds that the registry asks to wait.
    """

    pause = 0.0


def retry_after(text: str | None) -> float:
    """Return the seconds of a header ``Retry-After``; 0 if it is missing or a date."""
    return float(text[:9]) if text and text.isascii() and text.isdecimal() else 0.0


@dataclass(frozen=True)
class Retries:
    """Policy for the number of attempts and the pauses between them.

    Attributes
    ----------
    wait : callable
        Function that waits for some seconds.
    """

    wait: Callable[[float], object]

    def __call__(self, action: Callable[[], _Result]) -> _Result:
        """Return the result of the action; raise TransientError if the last attempt fails with it as well."""
        for tried in count():
            try:
                return action()
            except TransientError as error:
                self.pause(tried, error)
        raise AssertionError  # unreachable: the last pause raises

    def pause(self, tried: int, error: TransientError) -> None:
        """Wait after a failure; raise it after the last attempt, or if the registry asks for too long a pause."""
        if tried >= len(PAUSES) or error.pause > LONGEST_PAUSE:
            raise error
        self.wait(max(PAUSES[tried], error.pause))
