"""A board's RAM as pools of the workspace."""

from __future__ import annotations

from mlfc.memory import Pool
from mlfc.micro.board.board import Board


def board_pools(board: Board) -> tuple[Pool, ...]:
    """Return a pool for each RAM of a board, the fastest first and of equally fast ones the largest.

    The memory that the stack lies in is smaller by what projects reserve for it.
    """
    memories = sorted(
        (item for item in board.memories if item.kind == "ram"), key=lambda item: (item.wait_cycles, -item.nbytes)
    )
    return tuple(
        Pool(item.name, max(1, item.nbytes - (board.stack_bytes if item is board.ram else 0))) for item in memories
    )
