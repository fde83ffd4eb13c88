"""Fused chains on emulated Cortex-M4 and M55, against the interpreter of loop-level code."""

from __future__ import annotations

import pytest

import mlfc
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import emulated_factory
from tests.native.differential import difference, interpreted, module_of
from tests.native.fused_chains import covering

pytestmark = pytest.mark.usefixtures("_arm")

SEED = 12
MOST_CHANNELS = 17
"""A vector of the M55 has 16 bytes."""
BOARDS = {"mps2-an386": "cortex-m4", "mps3-an547": "cortex-m55"}


def test_boards_compute_what_the_loops_mean() -> None:
    """Those of the plainer core, for both: the interpreter takes most of the time."""
    chains = covering(SEED, MOST_CHANNELS)
    inputs = {var.name: array for chain in chains for var, array in zip(chain.variables, chain.inputs(), strict=True)}
    module = module_of(chains)
    factories = {
        (board, printer): mlfc.build(module, f"{printer} -mcpu={cpu}", module_name="model")
        for board, cpu in BOARDS.items()
        for printer in ("c", "llvm")
    }
    expected = interpreted(factories["mps2-an386", "c"].program, inputs)
    faults = {}
    for (board, printer), factory in factories.items():
        outputs = emulated_factory(factory, find_board(board), cflags="-O3").run(inputs)
        assert outputs.keys() == expected.keys()
        for name, output in outputs.items():
            fault = difference(output, expected[name])
            if fault:
                faults[board, printer, name] = fault
    assert faults == {}
