"""What lives in the workspace during each call: the table behind `inspect` and budget messages."""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.memory.liveness import live_ranges
from mlfc.memory.planner import SCRATCH_ALIGNMENT, Plan
from mlfc.tir.ir import Program

SCRATCH_NAME = "(scratch)"


@dataclass(frozen=True)
class Row:
    """The workspace during one call."""

    call: int  # index into ``Program.calls``
    function: str  # name of the kernel
    nodes: tuple[str, ...]  # original nodes that the call computes
    live_bytes: int  # sum of live bytes; tensors that share their place in this call count once
    workspace_bytes: int  # scratch of the call alone
    tensors: tuple[tuple[str, int], ...]  # name and bytes of each live tensor, largest first


def report(program: Program, plan: Plan) -> tuple[Row, ...]:
    """Return one row a call."""
    present: list[list[tuple[str, int]]] = [[] for _ in program.calls]
    for item in live_ranges(program, plan.alignment, SCRATCH_ALIGNMENT):
        for index in range(item.first, item.last + 1):
            present[index].append((item.value.name if item.value else SCRATCH_NAME, item.nbytes))
    return tuple(
        Row(
            index,
            call.kernel.name,
            call.nodes,
            plan.live[index],
            call.kernel.scratch_bytes,
            tuple(sorted(present[index], key=lambda tensor: (-tensor[1], tensor[0]))),
        )
        for index, call in enumerate(program.calls)
    )
