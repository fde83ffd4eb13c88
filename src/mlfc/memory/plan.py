"""The memory plan of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlfc.errors import InternalError
from mlfc.memory.pools import DEFAULT_POOL, PoolSpan
from mlfc.support.dims import Extent, bounds
from mlfc.support.text import Displayed
from mlfc.tir.program import KernelCall, Value

SCRATCH_ALIGNMENT = 64
SCRATCH_NAME = "(scratch)"


@dataclass(eq=False)
class Storage:
    """Memory of its own that holds one value after another: what a run allocates, or of the graph executor."""

    nbytes: Extent
    # whether it is there from the start of a part of the run; else it is allocated anew for each value
    is_lasting: bool = True
    last: int = -1  # the instruction after which it is free
    # the instruction where the part of the run begins in which it is used: 0, or a label behind `BranchOnSymbols`
    part: int = 0
    device: str | None = None  # the kind of device that it is on; None for the host


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Displayed):
    """Offsets of all values and scratch in the workspace, or the storages that hold them."""

    size: int  # bytes of the arena. It must start at a multiple of `alignment`.
    # largest sum of live bytes over all calls, in-place reuse taken into account: no plan can be smaller
    lower_bound: int
    alignment: int  # of the arena. Scratch of 64 bytes or more lies at a multiple of 64.
    offsets: Mapping[Value, int]  # byte offset of each intermediate that owns its storage
    scratch_offsets: tuple[int, ...]  # for each call, the byte offset of its scratch; 0 where the call has none
    live: tuple[int, ...]  # live bytes during each call, scratch included
    peak_call: int | None  # index of the first call with the most live bytes; None for a program without calls
    inplace: tuple[Value | None, ...]  # for each call, the input whose place its output takes, element by element
    # for each call, the inputs of which its output takes a part of the bytes while it runs
    aliased_inputs: tuple[tuple[Value, ...], ...]
    # the pools that the arena consists of, one after the other; empty where it is one array of the default's name
    spans: tuple[PoolSpan, ...] = ()
    # where states begin in their own memory, which keeps its bytes between runs: old and new values, by pairs
    state_offsets: Mapping[Value, int] = field(default_factory=dict)
    state_bytes: int = 0
    # of the graph executor, and of programs without bounds: the memory of values that own their bytes, and of scratch
    storages: tuple[Storage, ...] = ()
    # whether all memory is in one arena, of static size or as large as the bounds of the symbols allow
    is_bounded: bool = True
    values: Mapping[Value, Storage] = field(default_factory=dict)
    scratch: Mapping[KernelCall, tuple[Storage, ...]] = field(default_factory=dict)

    def _facts(self) -> Mapping[str, object]:
        sizes = {"size": f"{self.size:,}", "lower_bound": f"{self.lower_bound:,}", "state": f"{self.state_bytes:,}"}
        return {**sizes, "tensors": len(self.offsets), "calls": len(self.live), "peak_call": self.peak_call}

    @property
    def pools(self) -> tuple[PoolSpan, ...]:
        """The arrays that the workspace consists of; none for a program without workspace."""
        return self.spans or ((PoolSpan(DEFAULT_POOL, 0, self.size),) if self.size else ())

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all pools, without what lies between them in the arena."""
        return sum(pool.nbytes for pool in self.pools)

    def bytes_on(self, device: str | None) -> int:
        """Return the bytes of the graph executor's storages on one kind of device, but for those of a single tensor."""
        shared = {storage for value, storage in self.values.items() if value.kind == "intermediate"}
        shared.update(storage for group in self.scratch.values() for storage in group)
        return sum(bounds(storage.nbytes)[1] for storage in shared if storage.device == device)

    def place(self, offset: int) -> tuple[PoolSpan, int]:
        """Return the pool in which an offset of the arena lies, and the offset from the pool's start."""
        below = (pool for pool in self.pools if pool.base <= offset)
        pool = max(below, key=lambda pool: pool.base, default=PoolSpan(DEFAULT_POOL, 0, 0))
        return pool, offset - pool.base

    def offset(self, value: Value) -> int:
        """Return the byte offset of an intermediate or of a view of one; of a state, that in the memory of states."""
        offsets = self.state_offsets if value.root.kind == "state" else self.offsets
        try:
            return offsets[value.root] + value.root_start
        except KeyError:
            raise InternalError(f"'{value.name}' has no place in memory") from None


NO_PLAN = Plan(0, 0, 1, {}, (), (), None, (), ())
"""The plan of code whose caller provides all memory."""
