"""What the workspace and the constants can lie in: memories of a board, or arrays of the caller's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlfc.errors import OptionError, ProblemsError
from mlfc.support.c_names import KEYWORDS
from mlfc.support.text import Displayed

DEFAULT_POOL = "global_workspace"
POOL_ALIGNMENT = 64
_SECTION = ".bss.noinit.tvm"
STATE_SECTION = ".bss.tvm_state"
"""Where a static array of states lies: start-up code makes it zeros, as all of ``.bss``."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True)
class Pool(Displayed):
    """A memory that blocks of the workspace may lie in; microTVM's workspace pool.

    Attributes
    ----------
    name : str
        Goes into symbols, macros and the section's name.
    nbytes : int or None
        How much of it the workspace may take; None for as much as it needs.
    """

    name: str
    nbytes: int | None = None


@dataclass(frozen=True)
class ConstantPool(Pool):
    """A memory that constants may lie in.

    Attributes
    ----------
    external : bool
        The caller loads the constants there, from a file beside the code, and passes a pointer; else a linker script
        places them.
    """

    external: bool = False


@dataclass(frozen=True)
class MemoryOptions:
    """Where a module's memory goes; by default one workspace, and constants wherever the linker puts them."""

    workspace_io: bool = False  # inputs and outputs lie in the workspace, beside intermediates
    pools: tuple[Pool, ...] = ()  # of the workspace, in the order of preference
    constants: tuple[ConstantPool, ...] = ()  # of constants, in the order of preference
    # the bytes for workspace, inputs and outputs for which layers are tiled by rows; None where none are
    ram: int | None = None

    def __post_init__(self) -> None:
        found = [*_faults(self.pools, "pool"), *_faults(self.constants, "constants")]
        both = {pool.name for pool in self.pools} & {pool.name for pool in self.constants if pool.external}
        found += [
            OptionError(f"'{name}' is a pool of the workspace and an external one of constants", place="constants")
            for name in sorted(both)
        ]
        if found:
            raise found[0] if len(found) == 1 else ProblemsError(found)


@dataclass(frozen=True)
class PoolSpan:
    """A pool's part of the arena in which offsets of the workspace count."""

    name: str
    base: int  # where it begins, a multiple of 64
    nbytes: int
    lower_bound: int = 0  # the most live bytes in it during a call: no plan of what lies there can be smaller


def pool_array(name: str) -> str:
    """Return the name of the static array of a pool in generated code."""
    return name if name == DEFAULT_POOL else f"{name}_workspace_pool"


def pool_section(name: str) -> str:
    """Return the section in which the array of a pool lies, for linker scripts."""
    return _SECTION if name == DEFAULT_POOL else f"{_SECTION}.{name}"


def _faults(pools: Sequence[Pool], place: str) -> Iterator[OptionError]:
    seen: set[str] = set()
    for pool in pools:
        if not _NAME.fullmatch(pool.name) or pool.name in KEYWORDS:
            yield OptionError(
                f"'{pool.name[:80]}' cannot be the name of a memory",
                place=place,
                next_step="Use at most 32 lower-case letters, digits and underscores, a letter first; no keyword of C",
            )
        if pool.nbytes is not None and pool.nbytes < 1:
            yield OptionError(f"'{pool.name[:80]}' has no bytes", place=place, next_step="Give it a size from 1")
        if pool.name in seen:
            yield OptionError(f"'{pool.name[:80]}' is given twice", place=place)
        seen.add(pool.name)
