"""Trying again what may succeed the next time: a few times, with longer pauses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from mlfc.errors import RegistryError

PAUSES = (0.5, 1.0, 2.0)
"""Seconds before the second, third and fourth try, which is the last one."""
LONGEST_PAUSE = 30.0
"""Seconds that a registry may ask for."""
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Status codes of requests that may succeed when they are sent again."""
_Result = TypeVar("_Result")


class TransientError(RegistryError):
    """A failure that another try may not have.

    Attributes
    ----------
    pause : float
        Seconds for which the registry asks before that.
    """

    pause = 0.0


def retry_after(text: str | None) -> float:
    """Return the seconds of a header ``Retry-After``; 0 for none, and for a date."""
    return float(text[:9]) if text and text.isascii() and text.isdecimal() else 0.0


@dataclass(frozen=True)
class Retries:
    """How often and after which pauses something is tried again.

    Attributes
    ----------
    wait : callable
        Waits for some seconds.
    """

    wait: Callable[[float], object]

    def __call__(self, action: Callable[[], _Result]) -> _Result:
        """Return what the action returns; raise TransientError where the last try fails in that way, too."""
        for tried in count():
            try:
                return action()
            except TransientError as error:
                self.pause(tried, error)
        raise AssertionError  # unreachable: the last pause raises

    def pause(self, tried: int, error: TransientError) -> None:
        """Wait after a failure; raise it where it was the last try, or the registry asks for too long a pause."""
        if tried >= len(PAUSES) or error.pause > LONGEST_PAUSE:
            raise error
        self.wait(max(PAUSES[tried], error.pause))
