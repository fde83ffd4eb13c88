"""The pool of threads for code that is linked into this process, where no library brought one."""

from __future__ import annotations

import ctypes
from functools import cache

from mlfc.crt import crt_files
from mlfc.errors import ToolchainError
from mlfc.library.build import PARALLEL, mentions_parallel
from mlfc.library.toolchain import compile_cached
from mlfc.runtime.threads import address_in, pool_function, share_pool

__all__ = ["PARALLEL", "mentions_parallel", "runner_address"]


def runner_address() -> int | None:
    """Return the address of the function that shares work; None where there is no pool and no compiler to build it."""
    if pool_function() is None:
        _bring_pool()
    return pool_function()


@cache
def _bring_pool() -> None:
    try:
        path = compile_cached(crt_files("parallel"), (), includes=("parallel",))
    except ToolchainError:
        return
    library = ctypes.CDLL(str(path))
    share_pool(lambda name: address_in(library, name))
