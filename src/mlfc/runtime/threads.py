"""The thread pool of kernels: one per process, provided by the first loaded library that has one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

from mlfc.errors import OptionError
from mlfc.support.locks import ForkSafeLock

MOST_THREADS = 1024
USED_POOL, _OWN_POOL = "mlfc_used_pool", "mlfc_own_pool"
_VERSION = 2


class _ThreadPool(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int32),
        ("run", ctypes.c_void_p),
        ("set_threads", ctypes.CFUNCTYPE(None, ctypes.c_int32)),
        ("threads", ctypes.CFUNCTYPE(ctypes.c_int32)),
        ("launches", ctypes.CFUNCTYPE(ctypes.c_uint64)),
        ("set_timed", ctypes.CFUNCTYPE(None, ctypes.c_int32)),
        ("time_of", ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int32)),
    )


@dataclass(eq=False)
class _Process:
    """Thread state of this process: the pool, and the thread count requested before the pool existed."""

    lock: ForkSafeLock = field(default_factory=ForkSafeLock)
    pool: _ThreadPool | None = None
    chosen: int | None = None

    def apply(self) -> None:
        if self.pool is not None and self.chosen is not None:
            self.pool.set_threads(self.chosen)


_process = _Process()


def address_in(library: ctypes.CDLL, name: str) -> int | None:
    """Return the address of a library's variable; None if it does not exist."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, name))
    except ValueError:
        return None


def share_pool(address_of: Callable[[str], int | None]) -> None:
    """Connect a library, by its symbols' addresses, to the pool of this process, which the first library provides."""
    used = address_of(USED_POOL)
    if used is None:
        return
    with _process.lock:
        if _process.pool is None:
            own = address_of(_OWN_POOL)
            pool = None if own is None else _ThreadPool.from_address(own)
            if pool is not None and pool.version == _VERSION:
                _process.pool = pool
                _process.apply()
        if _process.pool is not None:
            ctypes.c_void_p.from_address(used).value = ctypes.addressof(_process.pool)


def pool_function() -> int | None:
    """Return the address of the pool's function that runs work in parallel, for linked code; None without a pool."""
    return None if _process.pool is None else _process.pool.run


def set_num_threads(count: int) -> None:
    """Set the maximum number of threads per kernel in this process, from its next kernel on.

    Results are bit-identical for any number. A forked child process keeps the setting.

    Parameters
    ----------
    count : int
        1 to 1024; 0 for the default: the environment's ``TVM_NUM_THREADS``, else ``OMP_NUM_THREADS``, else the cores
        of a socket that the process may use.

    Raises
    ------
    OptionError
        For other numbers.

    Examples
    --------
    >>> mlfc.set_num_threads(1)
    >>> mlfc.get_num_threads()
    1
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_THREADS:
        raise OptionError(f"expected a number of threads from 0 to {MOST_THREADS}, got {count!r}", place="threads")
    with _process.lock:
        _process.chosen = count
        _process.apply()


def get_num_threads() -> int:
    """Return the maximum number of threads per kernel; 0 until a library with a pool is loaded or a number is set."""
    with _process.lock:
        if _process.pool is None:
            return _process.chosen or 0
        return int(_process.pool.threads())


def count_launches() -> int:
    """Return the number of parallel kernel launches in this process."""
    pool = _process.pool
    return 0 if pool is None else int(pool.launches())


def time_threads(is_timed: bool) -> None:
    """Start or stop measuring the time that each thread spends in the parallel parts of kernels.

    Each start resets the times to zero. It does nothing if no loaded library has a pool.
    """
    if _process.pool is not None:
        _process.pool.set_timed(int(is_timed))


def thread_times() -> list[float]:
    """Return the seconds that each thread spent in parallel parts since `time_threads(True)`, the caller's first.

    The difference of two calls is the thread balance of the work in between. Empty without a pool.
    """
    pool = _process.pool
    return [] if pool is None else [pool.time_of(thread) / 1e9 for thread in range(get_num_threads())]
