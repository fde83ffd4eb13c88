"""What tests under an emulator need, board by board."""

from __future__ import annotations

import pytest

from mlfc.micro.board.board import Board, find_board
from tests.conftest import need


def need_board(name: str) -> Board:
    """Return a board, or skip with the Debian packages of what is missing to build for it and to run it."""
    board = find_board(name)
    need(f"{board.toolchain.prefix}gcc", " ".join(board.toolchain.packages))
    if board.emulator:
        need(board.emulator.program, " ".join(board.emulator.packages))
    return board


@pytest.fixture
def _arm() -> None:
    need_board("mps2-an386")
