"""Locks that stay usable after a fork: in the child, a lock held by another thread would never be released."""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """A lock for ``with`` that is free in a child process unless the forking thread held it itself."""

    def __init__(self, *, reentrant: bool = False) -> None:
        self._make = threading.RLock if reentrant else threading.Lock
        self._free()
        _locks.add(self)

    def _free(self) -> None:
        self._lock = self._make()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
        self._lock.release()

    def forget_other_threads(self) -> None:
        """Free the lock if another thread holds it: other threads do not exist in a child process."""
        if self._owner != threading.get_ident():
            self._free()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _forget_other_threads() -> None:
    for lock in list(_locks):
        lock.forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
