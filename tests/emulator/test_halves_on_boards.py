"""Layers of int16 data and of 4-bit weights on emulated Cortex-M4 and M55, compared with LiteRT and portable code."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import mlfc
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import EmulatedModule, emulated_factory
from mlfc.verify.litert import LiteRtReference
from tests.int16_cases import Int16Cases
from tests.tflite_cases import SAME, Case
from tests.unit.test_tflite_ops import inputs_of, model_of

pytestmark = pytest.mark.usefixtures("_arm", "quick_builds")

_CONV = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, "Padding": SAME}
_SMALL, _LARGE = 1 << 20, 1 << 33  # of biases; large ones exceed 32 bits


@cache
def _cases() -> tuple[Case, ...]:
    """Return layers with each kind of window, for both accumulator widths."""
    c = Int16Cases(np.random.default_rng(1))
    for name, shape, filters, size, stride, groups in (
        ("same", (1, 7, 6, 16), 12, 3, 1, 1), ("first", (1, 9, 8, 3), 5, 3, 2, 1), ("point", (1, 5, 5, 24), 7, 1, 1, 1),
        ("strided", (1, 6, 5, 6), 4, 1, 2, 1), ("wide", (1, 3, 3, 210), 3, 3, 1, 1),
        ("groups", (1, 4, 5, 16), 6, 3, 1, 2),
    ):  # fmt: skip
        data, weights = c.t(*shape), c.weights(filters, size, size, shape[3] // groups, channels=filters)
        out = tuple(-(-extent // stride) for extent in shape[1:3])
        fields = {**_CONV, "StrideH": stride, "StrideW": stride}
        bias = c.sums(data, weights, filters, largest=_LARGE if name == "point" else _SMALL)
        c.add(name, "CONV_2D", [data, weights, bias], c.t(1, *out, filters, scale=0.01), "Conv2DOptions", fields)
    for name, taken, units, rows in (("row", 96, 10, 1), ("odd", 37, 5, 3)):
        data, weights = c.t(rows, taken), c.weights(units, taken)
        c.add(name, "FULLY_CONNECTED", [data, weights, c.sums(data, weights, units, largest=_SMALL)],
              c.t(rows, units, scale=0.01), "FullyConnectedOptions", {})  # fmt: skip
    for name, channels, multiplier in (("depthwise", 18, 1), ("multiplied", 5, 2)):
        count = channels * multiplier
        data, weights = c.t(1, 6, 5, channels), c.weights(1, 3, 3, count, channels=count, axis=3)
        c.add(name, "DEPTHWISE_CONV_2D", [data, weights, c.sums(data, weights, count, largest=_SMALL)],
              c.t(1, 6, 5, count, scale=0.01), "DepthwiseConv2DOptions",
              {**_CONV, "DepthMultiplier": multiplier})  # fmt: skip
    for name, shape, filters, size, sixteen in (
        ("nibbles", (1, 5, 6, 16), 9, 3, False), ("nibbles_point", (1, 4, 3, 32), 4, 1, False),
        ("nibbles_odd", (1, 5, 4, 7), 4, 3, False), ("nibbles_wide", (1, 4, 5, 6), 5, 3, True),
    ):  # fmt: skip
        data = c.t(*shape) if sixteen else c.codes(*shape)
        weights = c.weights(filters, size, size, shape[3], channels=filters)
        weights.dtype, weights.value = "int4", c.rng.integers(-8, 8, weights.shape)
        bias = c.sums(data, weights, filters, "int64" if sixteen else "int32", 1 << 10)
        out = (*shape[:3], filters)
        result = c.t(*out, scale=0.001) if sixteen else c.codes(*out, scale=0.1)
        c.add(name, "CONV_2D", [data, weights, bias], result, "Conv2DOptions", _CONV)
    return tuple(c.found)


@cache
def _fed() -> dict[str, np.ndarray]:
    return inputs_of(list(_cases()), np.random.default_rng(2))


def _firmware(target: str, board: str) -> EmulatedModule:
    mod, params = mlfc.import_model(model_of(list(_cases())))
    return emulated_factory(mlfc.build(mod, target, params), find_board(board), cflags="-O3")


@cache
def _plain_instructions(board: str) -> int:
    return _firmware("c -mcpu=cortex-m3", board).measure(_fed()).instructions


@pytest.mark.parametrize(
    ("target", "board", "share"),
    [
        ("c -mcpu=cortex-m4", "mps2-an386", 0.75), ("llvm -mcpu=cortex-m4", "mps2-an386", 0.75),
        ("c -mcpu=cortex-m55", "mps3-an547", 0.45), ("llvm -mcpu=cortex-m55", "mps3-an547", 0.45),
    ],
)  # fmt: skip
def test_boards_compute_what_litert_does(target: str, board: str, share: float) -> None:
    made = _firmware(target, board)
    run = made.measure(_fed())
    for case in _cases():
        expected = LiteRtReference(model_of([case])).run({name: _fed()[name] for name in case.inputs})
        for name in case.op.outputs:
            np.testing.assert_array_equal(run.outputs[name], expected[name], name)
    assert run.instructions < share * _plain_instructions(board)
