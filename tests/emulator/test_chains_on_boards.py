"""Fused chains on emulated Cortex-M4 and M55, compared with the interpreter of loop-level code."""

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
"""More than one M55 vector, which has 16 bytes."""
BOARDS = {
    ("mps2-an386", "c"): "cortex-m4",
    # LLVM's code for the Cortex-M4 is tested with layers in test_dsp_on_boards.py, and with functions in
    # test_llvm_firmware.py
    ("mps3-an547", "c"): "cortex-m55",
    ("mps3-an547", "llvm"): "cortex-m55",
}


def test_boards_compute_what_the_loops_mean() -> None:
    """Compare both cores with one interpretation of the Cortex-M4's code, as the interpreter takes most of the time."""
    chains = covering(SEED, MOST_CHANNELS)
    inputs = {var.name: array for chain in chains for var, array in zip(chain.variables, chain.inputs(), strict=True)}
    module = module_of(chains)
    factories = {
        (board, printer): mlfc.build(module, f"{printer} -mcpu={cpu}", module_name="model")
        for (board, printer), cpu in BOARDS.items()
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
