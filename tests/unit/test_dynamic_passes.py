"""The graph passes form the same groups in models with dynamic dimensions as in static ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlfc.relay import ir
from mlfc.relay.ir import call
from mlfc.relay.visitor import post_order
from mlfc.support.dims import Dim, Symbol
from mlfc.target.features import Features
from mlfc.tir.parameters import with_numbers
from mlfc.transform.lower_group import lower_group
from mlfc.transform.matching import matching_axes
from mlfc.transform.pipeline import run
from tests.relay_run import operators
from tests.verify_relay import verify as verify_module
from tests.verify_tir import verify

Make = Callable[..., tuple[tuple[ir.Var, ...], ir.Expr]]
N, S, H, W = (Symbol(name).dim for name in "nshw")
SIZES = ({"n": 1, "s": 1, "h": 7, "w": 9}, {"n": 3, "s": 17, "h": 16, "w": 33})


def weights(*shape: int) -> ir.Constant:
    return ir.const(np.resize(np.asarray([0.5, -0.25, 1.0, -1.5, 0.125], np.float32), shape))


def norm_model(channels: Any, length: Any) -> tuple[tuple[ir.Var, ...], ir.Expr]:
    x = ir.Var("x", ir.TensorType((1, channels, length), "float32"))
    distance = call("subtract", [x, call("mean", [x], axis=(2,), keepdims=True)])
    variance = call("mean", [call("multiply", [distance, distance])], axis=(2,), keepdims=True)
    y = call("divide", [distance, call("sqrt", [call("add", [variance, ir.const(1e-5)])])])
    return (x,), y


def image_model(batch: Any, height: Any, width: Any) -> tuple[tuple[ir.Var, ...], ir.Expr]:
    x = ir.Var("x", ir.TensorType((batch, 3, height, width), "float32"))
    same = {"padding": (1, 1, 1, 1), "channels": 8, "kernel_size": (3, 3)}
    y = call("nn.relu", [call("nn.bias_add", [call("nn.conv2d", [x, weights(8, 3, 3, 3)], same), weights(8)])])
    y = call("nn.relu", [call("add", [call("nn.conv2d", [y, weights(8, 8, 3, 3)], same), y])])
    y = call("nn.max_pool2d", [y], pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    y = call("nn.pad", [call("multiply", [y, weights(1, 8, 1, 1)]), ir.const(0.0)],
             pad_width=((0, 0), (0, 0), (1, 1), (1, 1)))  # fmt: skip
    y = call("nn.conv2d", [y, weights(16, 8, 3, 3)], strides=(2, 2), channels=16, kernel_size=(3, 3))
    y = call("reshape", [call("nn.global_avg_pool2d", [y])], newshape=(0, -1))
    return (x,), call("nn.softmax", [call("nn.dense", [y, weights(10, 16)], units=10)], axis=-1)


def text_model(batch: Any, length: Any) -> tuple[tuple[ir.Var, ...], ir.Expr]:
    x = ir.Var("x", ir.TensorType((batch, length, 16), "float32"))
    mask = ir.Var("mask", ir.TensorType((batch, length), "float32"))

    def projected(value: ir.Expr, axes: tuple[int, ...]) -> ir.Expr:
        flat = call("nn.dense", [call("reshape", [value], newshape=(-1, 16)), weights(16, 16)], units=16)
        heads = call("reshape", [call("add", [flat, weights(16)])], newshape=(batch, length, 4, 4))
        turned = call("transpose", [heads], axes=axes)
        return call("reshape", [turned], newshape=(-1, *ir.tensor_type(turned).shape[2:]))

    q, k, v = (projected(x, axes) for axes in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
    scores = call("nn.batch_matmul", [q, k], transpose_b=False)
    scores = call("divide", [call("reshape", [scores], newshape=(batch, 4, length, length)), ir.const(2.0)])
    hidden = call("multiply", [call("expand_dims", [mask], axis=1, num_newaxis=2), ir.const(-1e4)])
    shares = call("nn.softmax", [call("add", [scores, hidden])], axis=-1)
    shares = call("reshape", [shares], newshape=(-1, length, length))
    y = call("reshape", [call("nn.batch_matmul", [shares, v], transpose_b=False)], newshape=(batch, 4, length, 4))
    y = call("reshape", [call("transpose", [y], axes=(0, 2, 1, 3))], newshape=(batch, length, 16))
    y = call("nn.layer_norm", [call("add", [y, x]), weights(16), weights(16)], axis=-1)
    first = call("strided_slice", [y], begin=(0,), end=(1,), strides=(1,), axes=(1,))
    return (x, mask), call("tanh", [call("squeeze", [first], axis=(1,))])


@pytest.mark.parametrize(("make", "extents"), [(image_model, (N, H, W)), (text_model, (N, S))])
def test_groups_are_those_of_known_extents(make: Make, extents: tuple[Dim, ...]) -> None:
    module = run(ir.IRModule({"main": ir.Function(*make(*extents))}), copies=False,
                 after_each=lambda _, found: verify_module(found))  # fmt: skip
    known = run(ir.IRModule({"main": ir.Function(*make(*(SIZES[1][str(extent)] for extent in extents)))}), copies=False)
    assert operators(module) == operators(known)
    groups = [node for node in calls(module) if isinstance(node.op, ir.Function)]
    for group in groups:
        assert isinstance(group.op, ir.Function)
        prim = lower_group(group.op, Features()).prim
        for size in SIZES:
            verify(with_numbers(prim, [size[symbol.name] for symbol in prim.symbols]) if prim.symbols else prim)
    assert len(groups) > 5


def test_a_norm_along_a_dynamic_axis_stays() -> None:
    """Keep the norm, because its scale and offset per element would not have a static shape."""
    for channels, length in ((4, S), (N, 16)):
        module = run(ir.IRModule({"main": ir.Function(*norm_model(channels, length))}))
        assert ("nn.layer_norm" in "+".join(operators(module))) == (length == 16)


def calls(module: ir.IRModule) -> list[ir.Call]:
    return [node for node in post_order(module.main.body) if isinstance(node, ir.Call)]


def test_runs_of_axes_with_equal_products() -> None:
    assert matching_axes((N, S, 16), (N * S, 4, 4)) == [([0, 1], [0]), ([2], [1, 2])]
    assert matching_axes((4 * N, S), (N, 4, S)) == [([0], [0, 1]), ([1], [2])]
    assert matching_axes((N, S, 6), (S, N, 2, 3)) == [([0, 1, 2], [0, 1, 2, 3])]
