"""Whether two blocks of a workspace lie over each other while both are needed, by what the metadata say of the plan.

`memory.prove` does this for the compiler by replaying every byte; here numbers come from a file, so the work must not
depend on how large they are: blocks are taken in the order of their births, and each is compared with its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from mlfc.archive.validate.parsed_files import ArchiveFault, ParsedFiles
from mlfc.support.module_info import BlockInfo, PoolInfo, ReachInfo


def plan_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    """Yield blocks that cannot be where the plan of a module puts them."""
    archive = parsed.archive
    for name, module in archive.record.modules.items():
        details = module.details
        if details is None or details.plan is None:
            continue
        place = f"{archive.metadata_path}: {name}: plan"
        blocks = details.plan
        pools = details.pools
        size = max(pool.base + pool.nbytes for pool in pools) if pools else details.memory.workspace_bytes
        wrong = dict(_single_faults(blocks, len(details.operators), size))
        for cause in pool_faults(pools, blocks, details.memory.workspace_bytes):
            yield ArchiveFault("plan", place, cause)
        for cause in wrong.values():
            yield ArchiveFault("plan", place, cause)
        for cause in overlaps(blocks, wrong):
            yield ArchiveFault("plan", place, cause)


def _single_faults(blocks: Sequence[BlockInfo], calls: int, size: int) -> Iterator[tuple[int, str]]:
    """Yield the number of a block and what is wrong with it by itself."""
    for index, block in enumerate(blocks):
        shown, reused = _shown(block, index), block.reuses
        if not 0 <= block.first <= block.last < calls:
            yield index, f"{shown} lives from call {block.first} to call {block.last} of {calls}"
        elif block.offset + block.nbytes > size:
            yield index, f"{shown} ends at byte {block.offset + block.nbytes} of a workspace of {size}"
        elif reused is not None and not (0 <= reused < len(blocks) and reused != index):
            yield index, f"{shown} takes the place of block {reused}, which there is not"
        else:
            for entry in block.reaches:
                cause = reach_fault(blocks, index, entry)
                if cause:
                    yield index, f"{shown} {cause}"


def reach_fault(blocks: Sequence[BlockInfo], index: int, entry: ReachInfo) -> str | None:
    """Return what is wrong with a block's claim that it takes bytes of an input; None if nothing is."""
    number, distance = entry.block, entry.distance
    if number >= len(blocks) or number == index:
        return f"reaches into block {number}, which there is not"
    block, other = blocks[index], blocks[number]
    if other.last != block.first:
        return f"reaches into block {number}, which is not read for the last time where it is written"
    if block.offset + distance > other.offset:
        return f"starts less than {distance} bytes before block {number}, into which it reaches"
    return None


def pool_faults(pools: Sequence[PoolInfo], blocks: Sequence[BlockInfo], workspace: int) -> Iterator[str]:
    """Yield pools that lie over each other or do not add up to the workspace, and blocks that lie in no single pool."""
    if not pools:
        return
    ordered = sorted(pools, key=lambda pool: pool.base)
    for pool, following in pairwise(ordered):
        if pool.base + pool.nbytes > following.base:
            yield f"the pools '{pool.name[:80]}' and '{following.name[:80]}' overlap"
    total = sum(pool.nbytes for pool in pools)
    if total != workspace:
        yield f"the pools have {total} bytes together, the workspace {workspace}"
    bases = [pool.base for pool in ordered]
    for index, block in enumerate(blocks):
        at = bisect_right(bases, block.offset) - 1
        end = ordered[at].base + ordered[at].nbytes if at >= 0 else 0
        if block.nbytes and block.offset + block.nbytes > end:
            yield f"{_shown(block, index)} does not lie within a pool"


def overlaps(blocks: Sequence[BlockInfo], skipped: Mapping[int, str]) -> Iterator[str]:
    """Yield blocks that share bytes with another one while both are needed, but for the blocks in `skipped`.

    Each call counts as two moments: it reads in the first and writes in the second. A block that takes the place of
    another one, or bytes of it, begins with the second moment of the call with whose first moment the other one ends,
    so that in-place work is no exception to anything.
    """
    given_up = {index: _given_up(blocks, block) for index, block in enumerate(blocks) if index not in skipped}
    handed_over = {number for numbers in given_up.values() for number in numbers}
    lives = []
    for index, block in enumerate(blocks):
        if index in skipped or not block.nbytes:
            continue
        takes = bool(given_up[index])
        start, end = 2 * block.first + takes, 2 * block.last + (index not in handed_over)
        lives.append((start, end, index))
    alive: list[tuple[int, int, int]] = []
    deaths: list[tuple[int, tuple[int, int, int]]] = []
    for start, end, index in sorted(lives):
        while deaths and deaths[0][0] < start:
            dead = heappop(deaths)[1]
            del alive[bisect_left(alive, dead)]
        block = blocks[index]
        item = (block.offset, block.offset + block.nbytes, index)
        at = bisect_left(alive, item)
        # what is alive never overlaps, so if anything is in the way, a neighbour is
        for other in alive[max(0, at - 1) : at + 1]:
            if other[0] < item[1] and item[0] < other[1]:
                yield f"{_shown(block, index)} overlaps {_shown(blocks[other[2]], other[2])} while both are needed"
                break
        else:
            insort(alive, item)
            heappush(deaths, (end, item))


def _given_up(blocks: Sequence[BlockInfo], block: BlockInfo) -> list[int]:
    """Return the blocks that end where this one begins, because it takes their place or bytes of them."""
    named = [block.reuses, *(entry.block for entry in block.reaches)]
    return [number for number in named if number is not None and blocks[number].last == block.first]


def _shown(block: BlockInfo, index: int) -> str:
    return f"block {index}, '{block.name[:80]}',"
