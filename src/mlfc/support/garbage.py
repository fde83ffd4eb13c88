"""Collection of garbage while models are compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = (200_000, 20, 50)


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Collect garbage less often in a block: at Python's rate, scanning the compiler's objects takes a tenth of it."""
    usual = gc.get_threshold()
    is_frequent = 0 < usual[0] < _RARELY[0]
    try:
        if is_frequent:
            gc.set_threshold(*_RARELY)
        yield
    finally:
        if is_frequent:
            gc.set_threshold(*usual)
