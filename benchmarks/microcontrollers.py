"""Firmware under QEMU beside TensorFlow Lite Micro: instructions, flash and RAM of one inference."""

from __future__ import annotations

import numpy as np
from rich.table import Table

import mlforge
from benchmarks.models import Model
from mlforge.micro.board import find_board
from mlforge.micro.emulator import emulated_factory
from mlforge.runtime.fill import fill
from mlforge.verify.litert import Reference

BOARDS = ("mps2-an386", "mps3-an547")
# instructions, bytes of flash and of RAM of TFLite Micro + CMSIS-NN, the best of its settings, measured in November
# 2026 under QEMU 7.2 with arm-none-eabi-gcc 12.2.1: on a Cortex-M4, and with vectors on a Cortex-M55
PEERS = {
    ("pretrainedResnet_quant", "mps2-an386"): (28_505_512, 149_668, 57_356),
    ("kws_ref_model", "mps2-an386"): (7_228_269, 107_784, 25_180),
    ("vww_96_int8", "mps2-an386"): (22_608_979, 387_136, 103_068),
    ("ad01_int8", "mps2-an386"): (573_204, 304_544, 3_564),
    ("pretrainedResnet_quant", "mps3-an547"): (4_811_324, 149_776, 57_440),
    ("kws_ref_model", "mps3-an547"): (1_787_180, 106_728, 29_836),
    ("vww_96_int8", "mps3-an547"): (6_433_084, 386_080, 103_260),
    ("ad01_int8", "mps3-an547"): (149_891, 301_660, 10_416),
}


def measure(model: Model, name: str) -> tuple[str, ...]:
    """Return the table row of one model on one board."""
    board = find_board(name)
    mod, params = mlforge.import_model(model.path)
    firmware = emulated_factory(mlforge.build(mod, board.target, params, module_name="model"), board)
    inputs = fill(firmware.inputs, seed=1)
    run = firmware.measure(inputs)
    expected = Reference(model.path).run(inputs)
    exact = all(np.array_equal(array, expected[tensor]) for tensor, array in run.outputs.items())
    ours = [number or 0 for number in (run.instructions, run.flash_bytes, run.ram_bytes)]
    cells = [f"{number:,}" for number in ours]
    peers = PEERS[model.name, name]
    ratios = [f"{number / peer:.2f}" for number, peer in zip(ours, peers, strict=True)]
    return (
        model.name,
        name,
        *(cell for pair in zip(cells, ratios, strict=True) for cell in pair),
        f"{run.stack_bytes:,}",
        "yes" if exact else "NO",
    )


def table(models: list[Model]) -> Table:
    """Return the table of the models for which peers were measured."""
    result = Table(title="Firmware under QEMU, gcc -O3; ratios are over TFLite Micro + CMSIS-NN")
    headings = ("model", "board", "instructions", "ratio", "flash", "ratio", "RAM", "ratio", "stack", "exact")
    for name in headings:
        result.add_column(name, justify="left" if name in ("model", "board", "exact") else "right")
    for board in BOARDS:
        for model in models:
            if (model.name, board) in PEERS:
                result.add_row(*measure(model, board))
    return result
