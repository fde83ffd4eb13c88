"""Instructions of layers with int16 data, or int4 weights, on emulated Cortex-M: ``python -m benchmarks halves``.

The layers have random numbers and LiteRT's rounding. In each pair, the second has biases beyond 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from rich.table import Table

import mlfc
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import emulated_factory
from tests.int16_cases import Int16Cases
from tests.tflite_cases import SAME, Case
from tests.unit.test_tflite_ops import inputs_of, model_of

# kernels of a Cortex-M3 are portable C
COLUMNS = {
    "plain, M4": ("c -mcpu=cortex-m3", "mps2-an386"),
    "DSP, M4": ("c -mcpu=cortex-m4", "mps2-an386"),
    "plain, M55": ("c -mcpu=cortex-m3", "mps3-an547"),
    "MVE, M55": ("c -mcpu=cortex-m55", "mps3-an547"),
}
BIASES = (1 << 20, 1 << 40)
_CONV = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, "Padding": SAME}


def _convolution(side: int, channels: int, filters: int, kernel: int) -> Callable[[Int16Cases, int], int]:
    def add(c: Int16Cases, largest: int) -> int:
        data, weights = c.t(1, side, side, channels), c.weights(filters, kernel, kernel, channels, channels=filters)
        result = c.t(1, side, side, filters, scale=0.01)
        c.add("layer", "CONV_2D", [data, weights, c.sums(data, weights, filters, largest=largest)], result,
              "Conv2DOptions", _CONV)  # fmt: skip
        return side * side * math.prod(weights.shape)

    return add


def _dense(taken: int, units: int) -> Callable[[Int16Cases, int], int]:
    def add(c: Int16Cases, largest: int) -> int:
        data, weights = c.t(1, taken), c.weights(units, taken)
        c.add("layer", "FULLY_CONNECTED", [data, weights, c.sums(data, weights, units, largest=largest)],
              c.t(1, units, scale=0.01), "FullyConnectedOptions", {})  # fmt: skip
        return taken * units

    return add


def _depthwise(side: int, channels: int) -> Callable[[Int16Cases, int], int]:
    def add(c: Int16Cases, largest: int) -> int:
        data, weights = c.t(1, side, side, channels), c.weights(1, 3, 3, channels, channels=channels, axis=3)
        c.add("layer", "DEPTHWISE_CONV_2D", [data, weights, c.sums(data, weights, channels, largest=largest)],
              c.t(1, side, side, channels, scale=0.01), "DepthwiseConv2DOptions",
              {**_CONV, "DepthMultiplier": 1})  # fmt: skip
        return side * side * 9 * channels

    return add


def _bytes(bits: int) -> Callable[[Int16Cases, int], int]:
    """Return a 3x3 convolution of int8 data with weights of `bits` bits."""

    def add(c: Int16Cases, _: int) -> int:
        data, weights = c.codes(1, 8, 8, 16), c.weights(16, 3, 3, 16, channels=16)
        top = 1 << (bits - 1)
        weights.dtype, weights.value = f"int{bits}", c.rng.integers(-top, top, weights.shape).astype(np.int8)
        c.add("layer", "CONV_2D", [data, weights, c.sums(data, weights, 16, "int32", 1 << 10)],
              c.codes(1, 8, 8, 16, scale=0.1), "Conv2DOptions", _CONV)  # fmt: skip
        return 64 * math.prod(weights.shape)

    return add


LAYERS: dict[str, Callable[[Int16Cases, int], int]] = {
    "3x3, 16 to 16 channels, 8x8": _convolution(8, 16, 16, 3),
    "3x3, 3 to 16 channels, 16x16": _convolution(16, 3, 16, 3),
    "1x1, 32 to 32 channels, 8x8": _convolution(8, 32, 32, 1),
    "dense, 256 to 64": _dense(256, 64),
    "depthwise 3x3, 32 channels, 8x8": _depthwise(8, 32),
}
BYTES = {f"the first with int8 data and int{bits} weights": _bytes(bits) for bits in (8, 4)}


def _per_mac(add: Callable[[Int16Cases, int], int], largest: int, target: str, board: str) -> str:
    cases = Int16Cases(np.random.default_rng(1))
    macs = add(cases, largest)
    layer: list[Case] = cases.found
    mod, params = mlfc.import_model(model_of(layer))
    firmware = emulated_factory(mlfc.build(mod, target, params), find_board(board), cflags="-O3")
    return f"{firmware.measure(inputs_of(layer, np.random.default_rng(2))).instructions / macs:.2f}"


def table() -> Table:
    """Return the table of all layers."""
    result = Table(title="Instructions per multiply-accumulate, gcc -O3 (int32 sums | int64 biases)")
    result.add_column("layer")
    for name in COLUMNS:
        result.add_column(name, justify="right")
    for name, add in LAYERS.items():
        result.add_row(
            name, *(" | ".join(_per_mac(add, most, *where) for most in BIASES) for where in COLUMNS.values())
        )
    for name, add in BYTES.items():
        result.add_row(name, *(_per_mac(add, 0, *where) for where in COLUMNS.values()))
    return result
