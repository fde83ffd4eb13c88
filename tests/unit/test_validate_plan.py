"""Overlaps in plans are found: the sweep agrees with a look at every byte in every moment."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from mlforge.archive.validate_plan import overlaps

CALLS, BYTES = 5, 12


@st.composite
def plans(draw: st.DrawFn) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 7))):
        first = draw(st.integers(0, CALLS - 1))
        # half of the blocks take over from one that ends where they begin, if there is one
        ending = [number for number, block in enumerate(blocks) if block["last"] == first]
        reuses = draw(st.sampled_from(ending)) if ending and draw(st.booleans()) else None
        blocks.append(
            {
                "name": f"b{index}",
                "offset": draw(st.integers(0, BYTES)),
                "bytes": draw(st.integers(0, BYTES)),
                "first": first,
                "last": draw(st.integers(first, CALLS - 1)),
                "reuses": reuses,
            }
        )
    return blocks


def is_overlapping(blocks: list[dict[str, Any]]) -> bool:
    """Give each byte in each half of each call to the blocks that need it; more than one is an overlap."""
    taken: set[tuple[int, int, int]] = set()
    for index, block in enumerate(blocks):
        for call in range(block["first"], block["last"] + 1):
            for half in (0, 1):
                starts_in_place = call == block["first"] and half == 0 and block["reuses"] is not None
                heirs = [other for other in blocks if other["reuses"] == index and other["first"] == block["last"]]
                was_taken_over = call == block["last"] and half == 1 and heirs
                if starts_in_place or was_taken_over:
                    continue
                for byte in range(block["offset"], block["offset"] + block["bytes"]):
                    if (byte, call, half) in taken:
                        return True
                    taken.add((byte, call, half))
    return False


@given(plans())
def test_the_sweep_sees_what_every_byte_tells(blocks: list[dict[str, Any]]) -> None:
    assert bool(list(overlaps(blocks, {}))) == is_overlapping(blocks)
