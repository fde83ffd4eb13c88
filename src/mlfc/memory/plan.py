"""The memory plan of a program, and the memories of workspace and constants: memories of a board, or arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mlfc.errors import InternalError, OptionError, ProblemsError
from mlfc.support.c_names import KEYWORDS
from mlfc.support.dims import Extent, bounds
from mlfc.support.text import Displayed
from mlfc.tir.program import KernelCall, Value

DEFAULT_POOL = "global_workspace"
POOL_ALIGNMENT = 64
_SECTION = ".bss.noinit.tvm"
STATE_SECTION = ".bss.tvm_state"
"""Section of a static array of states, which start-up code zeroes like all of ``.bss``."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True)
class Pool(Displayed):
    """A memory for blocks of the workspace; microTVM's workspace pool.

    Attributes
    ----------
    name : str
        Part of symbols, macros and the section's name.
    nbytes : int or None
        Limit of bytes that the workspace may use; None for unlimited.

    Examples
    --------
    >>> pools = [mlfc.Pool("sram", 4096), mlfc.Pool("psram")]
    >>> model = mlfc.compile("digits.tflite", pools=pools)
    """

    name: str
    nbytes: int | None = None


@dataclass(frozen=True)
class ConstantPool(Pool):
    """A memory for constants.

    Attributes
    ----------
    external : bool
        True if the caller loads the constants there, from a file beside the code, and passes a pointer; otherwise a
        linker script places them.
    """

    external: bool = False


@dataclass(frozen=True)
class MemoryOptions:
    """Memory placement of a module; by default one workspace, and constants placed by the linker."""

    workspace_io: bool = False  # inputs and outputs are in the workspace, together with intermediates
    pools: tuple[Pool, ...] = ()  # of the workspace, in order of preference
    constants: tuple[ConstantPool, ...] = ()  # of constants, in order of preference
    # limit of workspace, inputs and outputs for tiling layers by rows; None for no tiling
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
    """A pool's part of the workspace arena."""

    name: str
    base: int  # its start, a multiple of 64
    nbytes: int
    lower_bound: int = 0  # peak of live bytes in it, a lower bound for any plan of its contents


def pool_array(name: str) -> str:
    """Return the name of the static array of a pool in generated code."""
    return name if name == DEFAULT_POOL else f"{name}_workspace_pool"


def pool_section(name: str) -> str:
    """Return the section of a pool's array, for linker scripts."""
    return _SECTION if name == DEFAULT_POOL else f"{_SECTION}.{name}"


def _faults(pools: Sequence[Pool], place: str) -> Iterator[OptionError]:
    seen: set[str] = set()
    for pool in pools:
        if not _NAME.fullmatch(pool.name) or pool.name in KEYWORDS:
            yield OptionError(
                f"'{pool.name[:80]}' cannot be the name of a memory",
                place=place,
                next_step="Use at most 32 lower-case letters, digits and underscores, a letter first; not a C keyword",
            )
        if pool.nbytes is not None and pool.nbytes < 1:
            yield OptionError(f"'{pool.name[:80]}' has no bytes", place=place, next_step="Use a size of at least 1")
        if pool.name in seen:
            yield OptionError(f"'{pool.name[:80]}' is given twice", place=place)
        seen.add(pool.name)


SCRATCH_ALIGNMENT = 64
SCRATCH_NAME = "(scratch)"


@dataclass(eq=False)
class Storage:
    """Memory that holds one value after another: allocated by a run, or by the graph executor."""

    nbytes: Extent
    # whether it exists from the start of a part of the run; otherwise it is allocated anew for each value
    is_lasting: bool = True
    last: int = -1  # the instruction after which it is freed
    # first instruction of the part of the run that uses it: 0, or a label after `BranchOnSymbols`
    part: int = 0
    device: str | None = None  # its kind of device; None for the host


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Displayed):
    """Offsets of all values and scratch in the workspace, or the storages that hold them."""

    size: int  # bytes of the arena, whose start must be a multiple of `alignment`
    # peak of live bytes over all calls with in-place reuse: a lower bound for any plan
    lower_bound: int
    alignment: int  # of the arena. Scratch of 64 bytes or more is aligned to 64.
    offsets: Mapping[Value, int]  # byte offset of each intermediate that owns its storage
    scratch_offsets: tuple[int, ...]  # for each call, the byte offset of its scratch; 0 where the call has none
    live: tuple[int, ...]  # live bytes during each call, scratch included
    peak_call: int | None  # index of the first call with the most live bytes; None for a program without calls
    inplace: tuple[Value | None, ...]  # for each call, the input whose place its output takes, element by element
    # for each call, the inputs that its output partially overwrites while it runs
    aliased_inputs: tuple[tuple[Value, ...], ...]
    # the pools that the arena consists of, one after the other; empty for one array with the default name
    spans: tuple[PoolSpan, ...] = ()
    # offsets of states in their own memory, which persists between runs: pairs of old and new values
    state_offsets: Mapping[Value, int] = field(default_factory=dict)
    state_bytes: int = 0
    # for the graph executor and programs without bounds: memory of values that own their bytes, and of scratch
    storages: tuple[Storage, ...] = ()
    # whether all memory is in one arena, of static size or of the maximum within the bounds of the symbols
    is_bounded: bool = True
    values: Mapping[Value, Storage] = field(default_factory=dict)
    scratch: Mapping[KernelCall, tuple[Storage, ...]] = field(default_factory=dict)

    def _facts(self) -> Mapping[str, object]:
        sizes = {"size": f"{self.size:,}", "lower_bound": f"{self.lower_bound:,}", "state": f"{self.state_bytes:,}"}
        return {**sizes, "tensors": len(self.offsets), "calls": len(self.live), "peak_call": self.peak_call}

    @property
    def pools(self) -> tuple[PoolSpan, ...]:
        """Arrays that the workspace consists of; empty for a program without workspace."""
        return self.spans or ((PoolSpan(DEFAULT_POOL, 0, self.size),) if self.size else ())

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all pools, without gaps between them in the arena."""
        return sum(pool.nbytes for pool in self.pools)

    def bytes_on(self, device: str | None) -> int:
        """Return the bytes of the graph executor's storages on one kind of device, except those of a single tensor."""
        shared = {storage for value, storage in self.values.items() if value.kind == "intermediate"}
        shared.update(storage for group in self.scratch.values() for storage in group)
        return sum(bounds(storage.nbytes)[1] for storage in shared if storage.device == device)

    def place(self, offset: int) -> tuple[PoolSpan, int]:
        """Return the pool that contains an offset of the arena, and the offset from the pool's start."""
        below = (pool for pool in self.pools if pool.base <= offset)
        pool = max(below, key=lambda pool: pool.base, default=PoolSpan(DEFAULT_POOL, 0, 0))
        return pool, offset - pool.base

    def offset(self, value: Value) -> int:
        """Return the byte offset of an intermediate or a view of one, or of a state in the memory of states."""
        offsets = self.state_offsets if value.root.kind == "state" else self.offsets
        try:
            return offsets[value.root] + value.root_start
        except KeyError:
            raise InternalError(f"'{value.name}' has no place in memory") from None


NO_PLAN = Plan(0, 0, 1, {}, (), (), None, (), ())
"""Plan of code whose caller provides all memory."""
