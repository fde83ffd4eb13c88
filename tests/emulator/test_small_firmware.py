"""Firmware of ``--optimize size``: exact, within 10 KB of its constants, and faster than TFLite Micro with CMSIS-NN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import emulated_factory
from mlfc.verify.litert import LiteRtReference
from tests.emulator.conftest import CMSIS_NN
from tests.harness import seeded_inputs

# bytes of weights, biases and requantization (eight bytes per channel)
CONSTANTS = {
    "pretrainedResnet_quant": 81_440, "kws_ref_model": 28_984, "vww_96_int8": 240_960, "ad01_int8": 270_960,
}  # fmt: skip


@pytest.mark.parametrize(("name", "board"), CMSIS_NN)
def test_small_firmware_is_exact_small_and_quick(name: str, board: str, models: Path) -> None:
    path, chosen = models / f"{name}.tflite", find_board(board)
    module, params = mlfc.import_model(path)
    firmware = emulated_factory(mlfc.build(module, chosen.target, params, module_name="model", optimize="size"), chosen)
    inputs = seeded_inputs(firmware.inputs, 4)
    run = firmware.measure(inputs)
    expected = LiteRtReference(path).run(inputs)
    for tensor, output in run.outputs.items():
        np.testing.assert_array_equal(output, expected[tensor])
    assert run.flash_bytes < CONSTANTS[name] + 10_240
    assert run.instructions is not None
    assert run.instructions < 0.7 * CMSIS_NN[name, board]
