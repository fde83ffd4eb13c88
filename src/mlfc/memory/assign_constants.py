"""Constants spread over several memories: the most read bytes into the first that has room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.errors import BudgetError
from mlfc.memory.pools import POOL_ALIGNMENT, ConstantPool
from mlfc.support.text import shortened
from mlfc.tir.ir import Program, Value
from mlfc.tir.traffic import traffic

_LARGEST = 5


def assign_constants(program: Program, pools: Sequence[ConstantPool]) -> Mapping[Value, ConstantPool]:
    """Choose a memory for every constant that a call reads.

    `pools`: in the order of preference, the fastest first; none leaves all constants to the linker.
    Raises BudgetError, naming the constant, the memory and the largest constants, if they have no room.
    """
    if not pools:
        return {}
    read = _read(program)
    free = {pool: pool.nbytes for pool in pools}
    chosen: dict[Value, ConstantPool] = {}
    # the order of first use decides between equals, so the same program is always placed in the same way
    for value in sorted(read, key=lambda value: -read[value] / max(1, value.nbytes)):
        size = -(-value.nbytes // POOL_ALIGNMENT) * POOL_ALIGNMENT
        for pool in pools:
            room = free[pool]
            if room is None or size <= room:
                chosen[value] = pool
                free[pool] = None if room is None else room - size
                break
        else:
            raise _too_small(value, size, read, pools, max(room or 0 for room in free.values()))
    return chosen


def _read(program: Program) -> dict[Value, int]:
    """Return the bytes that one run reads of each constant, in the order of first use."""
    kernels = {kernel: traffic(kernel) for kernel in dict.fromkeys(call.kernel for call in program.calls)}
    read: dict[Value, int] = {}
    for call in program.calls:
        arguments = zip((*call.inputs, *call.constants), call.kernel.params[:-1], strict=True)
        for value, buffer in arguments:
            if value.root.kind == "constant":
                read[value.root] = read.get(value.root, 0) + kernels[call.kernel].get(buffer, 0)
    return read


def _too_small(
    value: Value, size: int, read: Mapping[Value, int], pools: Sequence[ConstantPool], room: int
) -> BudgetError:
    largest = sorted(read, key=lambda item: (-item.nbytes, item.name))[:_LARGEST]
    listed = ", ".join(f"{shortened(item.name)} ({item.nbytes:,})" for item in largest)
    total = sum(-(-item.nbytes // POOL_ALIGNMENT) * POOL_ALIGNMENT for item in read)
    given = sum(pool.nbytes or 0 for pool in pools)
    return BudgetError(
        f"the constants do not fit: '{shortened(value.name)}' of {size:,} bytes has no place, the most room left in a "
        f"memory is {room:,}; all of them take {total:,}, {', '.join(pool.name for pool in pools)} have {given:,}; "
        f"the largest: {listed}",
        next_step="Give a memory more bytes, or name another one",
    )
