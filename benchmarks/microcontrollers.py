"""Firmware under QEMU and TensorFlow Lite Micro: instructions, start-up, flash, RAM and stack of one inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.table import Table

import mlfc
from benchmarks.models import Model
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import emulated_factory
from mlfc.verify.compare import sample_inputs
from mlfc.verify.litert import LiteRtReference

BOARDS = ("mps2-an386", "mps3-an547")


@dataclass(frozen=True)
class Setting:
    """Compile options for a row of the table.

    Attributes
    ----------
    name : str
    peer : str
        Key of `PEERS` to compare with.
    options : mapping
        For `mlfc.build`.
    models : tuple of str
        The models it applies to; all if empty.
    """

    name: str
    peer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()


# the other runtime's arena includes inputs and outputs
_PLACED = {"workspace_io": True}
SETTINGS = (
    Setting("speed", "speed", {"optimize": "speed", **_PLACED}),
    Setting("size", "size", {"optimize": "size", **_PLACED}),
    # half of the default size of workspace, input and output, so the first layers are tiled by rows
    Setting("speed, half the RAM", "speed", {"optimize": "speed", **_PLACED, "ram": 32_257}, ("vww_96_int8",)),
)

# bytes of weights, int32 biases, and 8 bytes per channel
RAW_CONSTANTS = {
    "pretrainedResnet_quant": 81_440,
    "kws_ref_model": 28_984,
    "vww_96_int8": 240_960,
    "ad01_int8": 270_960,
}

# Instructions, bytes of flash and of RAM of TensorFlow Lite Micro with CMSIS-NN, measured in November 2026 under QEMU
# 7.2 with arm-none-eabi-gcc 12.2.1: in its fastest configuration, and with -Os where measured.
PEERS = {
    ("mps2-an385", "speed"): {
        "pretrainedResnet_quant": (41_758_433, 151_512, 57_244),
        "kws_ref_model": (10_546_996, 107_356, 25_084),
        "vww_96_int8": (32_083_025, 386_708, 102_972),
        "ad01_int8": (955_852, 304_620, 3_560),
    },
    ("mps2-an386", "speed"): {
        "pretrainedResnet_quant": (28_505_512, 149_668, 57_356),
        "kws_ref_model": (7_228_269, 107_784, 25_180),
        "vww_96_int8": (22_608_979, 387_136, 103_068),
        "ad01_int8": (573_204, 304_544, 3_564),
    },
    ("mps2-an386", "size"): {
        "pretrainedResnet_quant": (41_073_711, 142_404, 57_332),
        "kws_ref_model": (9_227_158, 100_680, 25_156),
        "vww_96_int8": (28_556_455, 380_032, 103_044),
        "ad01_int8": (843_332, 299_520, 3_600),
    },
    ("mps2-an500", "speed"): {
        "pretrainedResnet_quant": (28_618_147, 185_280, 57_580),
        "kws_ref_model": (7_298_826, 143_208, 25_404),
        "vww_96_int8": (23_050_581, 422_560, 103_292),
        "ad01_int8": (573_314, 309_716, 3_756),
    },
    ("mps3-an547", "speed"): {
        "pretrainedResnet_quant": (4_811_324, 149_776, 57_440),
        "kws_ref_model": (1_787_180, 106_728, 29_836),
        "vww_96_int8": (6_433_084, 386_080, 103_260),
        "ad01_int8": (149_891, 301_660, 10_416),
    },
    ("mps3-an547", "size"): {
        "pretrainedResnet_quant": (5_302_173, 137_216, 57_400),
        "kws_ref_model": (2_457_087, 95_776, 29_776),
        "vww_96_int8": (8_497_935, 375_128, 103_200),
        "ad01_int8": (243_149, 295_780, 10_432),
    },
}

_HEADINGS = (
    "model", "board", "optimize", "instructions", "ratio", "start-up", "flash", "ratio", "over constants", "RAM",
    "ratio", "stack", "exact",
)  # fmt: skip
_TEXTS = ("model", "board", "optimize", "exact")


def measure(model: Model, name: str, setting: Setting) -> tuple[str, ...]:
    """Return the table row of one model on one board, for one setting."""
    board = find_board(name)
    mod, params = mlfc.import_model(model.path)
    factory = mlfc.build(mod, board.target, params, module_name="model", **setting.options)
    firmware = emulated_factory(factory, board)
    reference = LiteRtReference(model.path)
    runs, is_exact = [], True
    for _, inputs in sample_inputs(firmware.inputs, 1, seed=1):
        runs.append(firmware.measure(inputs))
        expected = reference.run(inputs)
        is_exact &= all(np.array_equal(array, expected[tensor]) for tensor, array in runs[-1].outputs.items())
    run = runs[0]  # on random inputs
    peer = PEERS.get((name, setting.peer), {}).get(model.name)
    counted = (run.instructions, run.flash_bytes, run.ram_bytes)
    instructions, flash, ram = (_with_ratio(number, peer and peer[place]) for place, number in enumerate(counted))
    over = None if run.flash_bytes is None else run.flash_bytes - RAW_CONSTANTS[model.name]
    return (
        model.name,
        name,
        setting.name,
        *instructions,
        _number(run.startup_instructions),
        *flash,
        _number(over),
        *ram,
        _number(run.stack_bytes),
        "yes" if is_exact else "NO",
    )


def _with_ratio(number: int | None, peer: int | None) -> tuple[str, str]:
    return _number(number), f"{number / peer:.2f}" if number and peer else ""


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def table(models: Sequence[Model], boards: Sequence[str] = BOARDS) -> Table:
    """Return the table of the models in RAW_CONSTANTS, on the boards with these names."""
    result = Table(title="Firmware under QEMU; ratios are over TensorFlow Lite Micro with CMSIS-NN")
    for heading in _HEADINGS:
        result.add_column(heading, justify="left" if heading in _TEXTS else "right")
    for board in boards:
        for model in models:
            for setting in SETTINGS:
                if model.name in (setting.models or RAW_CONSTANTS):
                    result.add_row(*measure(model, board, setting))
    return result
