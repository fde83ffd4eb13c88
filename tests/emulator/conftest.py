"""Requirements of tests under an emulator, per board."""

from __future__ import annotations

import pytest

from mlfc.micro.board.board import Board, find_board
from tests.conftest import need

# instruction counts of TFLite Micro with CMSIS-NN in its fastest configuration, under QEMU 7.2 with gcc 12.2.1
CMSIS_NN = {
    ("pretrainedResnet_quant", "mps2-an386"): 28_505_512, ("pretrainedResnet_quant", "mps3-an547"): 4_811_324,
    ("kws_ref_model", "mps2-an386"): 7_228_269, ("kws_ref_model", "mps3-an547"): 1_787_180,
    ("vww_96_int8", "mps2-an386"): 22_608_979, ("vww_96_int8", "mps3-an547"): 6_433_084,
    ("ad01_int8", "mps2-an386"): 573_204, ("ad01_int8", "mps3-an547"): 149_891,
}  # fmt: skip


def need_board(name: str) -> Board:
    """Return a board, or skip with the Debian packages that are missing to build for it and to run it."""
    board = find_board(name)
    need(f"{board.toolchain.prefix}gcc", " ".join(board.toolchain.packages))
    if board.emulator:
        need(board.emulator.program, " ".join(board.emulator.packages))
    return board


@pytest.fixture
def _arm() -> None:
    need_board("mps2-an386")
