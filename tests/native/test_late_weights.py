"""Runtime weights: every kind of convolution computes the same as with constant weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.relay import ir
from tests.harness import compiled

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)


def _nhwc(rank: int) -> dict[str, Any]:
    return {"data_layout": "N" + "DHW"[-rank:] + "C"}


def _cases() -> Iterator[tuple[str, str, tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    image = _nhwc(2)
    yield "as ONNX has it", "nn.conv2d", (1, 3, 7, 6), (8, 3, 3, 2), {"padding": (1, 0, 1, 1)}
    yield "odd", "nn.conv2d", (2, 5, 5, 4), (3, 3, 4, 7), {**image, "kernel_layout": "HWIO", "strides": (2, 1)}
    dilated = {"dilation": (2, 3), "padding": (2, 3), "groups": 2}
    yield "dilated groups", "nn.conv2d", (1, 4, 9, 8), (6, 2, 3, 3), dilated
    yield "depthwise", "nn.conv2d", (1, 6, 6, 6), (6, 1, 3, 3), {"groups": 6, "padding": (1, 1)}
    by_two = {**image, "kernel_layout": "HWOI", "groups": 3}
    yield "depthwise by two", "nn.conv2d", (1, 6, 6, 3), (3, 3, 3, 2), by_two
    yield "long sums", "nn.conv2d", (1, 300, 3, 3), (2, 300, 3, 3), {}
    yield "line", "nn.conv1d", (1, 3, 9), (4, 3, 3), {"data_layout": "NCW", "kernel_layout": "OIW"}
    yield "volume", "nn.conv3d", (1, 2, 4, 5, 3), (4, 2, 2, 3, 2), {}
    yield "transposed", "nn.conv2d_transpose", (1, 4, 3, 3), (4, 5, 3, 3), {"strides": (2, 2), "padding": (1, 1)}
    grouped = {"groups": 2, "strides": (1, 2), "dilation": (2, 1)}
    yield "transposed groups", "nn.conv2d_transpose", (1, 4, 3, 3), (4, 2, 2, 3), grouped
    yield "transposed by one", "nn.conv2d_transpose", (2, 3, 4, 5), (3, 9, 3, 2), {"padding": (1, 0, 0, 1)}
    cut = {"strides": (2, 2), "padding": (3, 2), "output_padding": (1, 0)}
    yield "transposed, its borders cut off", "nn.conv2d_transpose", (1, 3, 5, 6), (3, 4, 4, 3), cut
    yield "transposed apart", "nn.conv2d_transpose", (1, 2, 3, 3), (2, 4, 2, 2), {"strides": (3, 3)}
    yield "transposed line", "nn.conv1d_transpose", (1, 3, 6), (3, 5, 4), {"strides": (2,), "padding": (1,)}
    yield "transposed volume", "nn.conv3d_transpose", (1, 2, 2, 3, 2), (2, 3, 2, 2, 3), {"strides": (2, 1, 2)}


CASES = {case[0]: case[1:] for case in _cases()}


def _values(shape: tuple[int, ...]) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def _integers(data: Any, weights: Any, zero: int) -> ir.Expr:
    numbers = [ir.const(np.int32(3)), ir.const(np.int32(zero)), ir.const(np.float32(0.5)), ir.const(np.float32(0.25))]
    return ir.call("qnn.conv2d", [data, weights, *numbers], padding=(1, 1), out_dtype="int32")


@pytest.mark.usefixtures("quick_builds")
def test_they_give_what_constants_give(tmp_path: Path) -> None:
    late: dict[str, ir.Expr] = {}
    fixed: dict[str, ir.Expr] = {}
    inputs: dict[str, Array] = {}
    variables: dict[str, ir.Var] = {}

    def given(name: str, value: Array) -> ir.Var:
        inputs[name] = value
        variables[name] = ir.Var(name, ir.TensorType(value.shape, str(value.dtype)))
        return variables[name]

    for number, (title, (operator, data, weights, attrs)) in enumerate(CASES.items()):
        x, value = given(f"x{number}", _values(data)), _values(weights)
        # some weights are loaded from memory, others are computed inline
        w: ir.Expr = given(f"w{number}", value)
        late[title] = ir.call(operator, [x, ir.call("negative", [w]) if number % 2 else w], **attrs)
        fixed[title] = ir.call(operator, [x, ir.const(-value if number % 2 else value)], **attrs)
    for zero in (0, 5):
        x = given(f"data{zero}", RNG.integers(-128, 128, (1, 4, 5, 5)).astype(np.int8))
        value = RNG.integers(-128, 128, (6, 4, 3, 3)).astype(np.int8)
        late[f"integers less {zero}"] = _integers(x, given(f"weights{zero}", value), zero)
        fixed[f"integers less {zero}"] = _integers(x, ir.const(value), zero)
    body = ir.Tuple((*late.values(), *fixed.values()))
    module = ir.IRModule({"main": ir.Function(tuple(variables.values()), body)}, tuple(map(str, range(2 * len(late)))))
    found = list(compiled(module, {}, tmp_path).run(inputs).values())
    for title, ours, wanted in zip(late, found, found[len(late) :], strict=False):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-4, err_msg=title)
        if wanted.dtype.kind == "i":
            np.testing.assert_array_equal(ours, wanted, err_msg=title)
