"""Overlaps in plans are found: the sweep agrees with a check of every byte at every time."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mlfc.archive.validate.layout import overlaps, pool_faults, reach_fault
from mlfc.support.module_info import BlockInfo, PoolInfo, ReachInfo

CALLS, BYTES = 5, 12


@st.composite
def plans(draw: st.DrawFn) -> list[BlockInfo]:
    blocks: list[BlockInfo] = []
    for index in range(draw(st.integers(1, 7))):
        first = draw(st.integers(0, CALLS - 1))
        # half of the blocks reuse one that ends where they start, if any
        ending = [number for number, block in enumerate(blocks) if block.last == first]
        heir_of = draw(st.sampled_from(ending)) if ending and draw(st.booleans()) else None
        whole = draw(st.booleans())
        blocks.append(
            BlockInfo(
                name=f"b{index}",
                offset=draw(st.integers(0, BYTES)),
                nbytes=draw(st.integers(0, BYTES)),
                first=first,
                last=draw(st.integers(first, CALLS - 1)),
                reuses=heir_of if whole else None,
                reaches=(ReachInfo(heir_of, 0),) if heir_of is not None and not whole else (),
            )
        )
    return blocks


def is_heir(block: BlockInfo, index: int) -> bool:
    return index in (block.reuses, *(entry.block for entry in block.reaches))


def is_overlapping(blocks: list[BlockInfo]) -> bool:
    """Return whether two blocks need the same byte in the same half of a call."""
    taken: set[tuple[int, int, int]] = set()
    for index, block in enumerate(blocks):
        for call in range(block.first, block.last + 1):
            for half in (0, 1):
                takes_over = block.reuses is not None or block.reaches
                starts_in_place = call == block.first and half == 0 and takes_over
                heirs = [other for other in blocks if is_heir(other, index) and other.first == block.last]
                was_taken_over = call == block.last and half == 1 and heirs
                if starts_in_place or was_taken_over:
                    continue
                for byte in range(block.offset, block.offset + block.nbytes):
                    if (byte, call, half) in taken:
                        return True
                    taken.add((byte, call, half))
    return False


@given(plans())
def test_the_sweep_sees_what_every_byte_tells(blocks: list[BlockInfo]) -> None:
    assert bool(list(overlaps(blocks, {}))) == is_overlapping(blocks)


def test_a_block_that_reaches_too_far_is_named() -> None:
    source = BlockInfo("x", nbytes=32, offset=16, first=0, last=1, reuses=None)
    output = BlockInfo("y", nbytes=32, offset=8, first=1, last=2, reuses=None)
    blocks = [source, output]
    assert reach_fault(blocks, 1, ReachInfo(0, 8)) is None
    assert reach_fault(blocks, 1, ReachInfo(0, 9)) == "starts less than 9 bytes before block 0, into which it reaches"
    assert reach_fault(blocks, 1, ReachInfo(2, 0)) == "reaches into block 2, which does not exist"
    blocks[0] = replace(source, last=2)
    assert "whose last read" in (reach_fault(blocks, 1, ReachInfo(0, 8)) or "")


POOLS = [PoolInfo("fast", 10, 0, 0), PoolInfo("slow", 20, 64, 0)]


@pytest.mark.parametrize(
    ("pools", "offset", "workspace", "said"),
    [
        (POOLS, 2, 30, None),
        (POOLS, 76, 30, None),
        (POOLS[::-1], 2, 30, None),
        ([], 1000, 30, None),
        (POOLS, 3, 30, "block 0, 'b', is not within one pool"),
        (POOLS, 20, 30, "block 0, 'b', is not within one pool"),
        (POOLS, 77, 30, "block 0, 'b', is not within one pool"),
        (POOLS, 2, 31, "the pools have 30 bytes together, the workspace 31"),
        ([replace(POOLS[0], nbytes=65), POOLS[1]], 2, 85, "the pools 'fast' and 'slow' overlap"),
    ],
)
def test_blocks_lie_within_one_pool(pools: list[PoolInfo], offset: int, workspace: int, said: str | None) -> None:
    block = BlockInfo("b", nbytes=8, offset=offset, first=0, last=0, reuses=None)
    assert list(pool_faults(pools, [block], workspace)) == ([said] if said else [])
