"""Fused chains on emulated Cortex-M4 and M55, against the interpreter of loop-level code."""

from __future__ import annotations

from functools import cache

import pytest

import mlfc
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import emulated_factory
from mlfc.relay import ir
from tests.native.differential import Array, difference, interpreted, module_of
from tests.native.fused_chains import covering

pytestmark = pytest.mark.usefixtures("_arm")

SEED = 12
MOST_CHANNELS = 17
"""A vector of the M55 has 16 bytes."""


@cache
def meant(cpu: str) -> tuple[ir.IRModule, dict[str, Array], dict[str, Array]]:
    """Return a module of chains, inputs, and what it computes of them; the interpreter takes most of the time."""
    chains = covering(SEED, MOST_CHANNELS)
    inputs = {var.name: array for chain in chains for var, array in zip(chain.variables, chain.inputs(), strict=True)}
    module = module_of(chains)
    return module, inputs, interpreted(mlfc.build(module, f"c -mcpu={cpu}").program, inputs)


@pytest.mark.parametrize("printer", ["c", "llvm"])
@pytest.mark.parametrize(("board", "cpu"), [("mps2-an386", "cortex-m4"), ("mps3-an547", "cortex-m55")])
def test_boards_compute_what_the_loops_mean(board: str, cpu: str, printer: str) -> None:
    module, inputs, expected = meant(cpu)
    factory = mlfc.build(module, f"{printer} -mcpu={cpu}", module_name="model")
    outputs = emulated_factory(factory, find_board(board), cflags="-O3").run(inputs).items()
    faults = {name: difference(output, expected[name]) for name, output in outputs}
    assert {name: fault for name, fault in faults.items() if fault} == {}
