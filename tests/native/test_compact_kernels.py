"""Kernels for older processors: their code size, and the same results as all other kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import mlfc
from mlfc.factory import Factory
from mlfc.relay import ir as relay
from mlfc.support.platforms import this_platform
from mlfc.target.features import LEVELS, Features, level_here
from mlfc.tir import ir
from mlfc.tir.ir import PrimFunc
from mlfc.tir.visitor import walk
from tests.native.kernel_runner import Kernels, group_of

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

Array = npt.NDArray[Any]
OLD = ("x86-64", "x86-64-v3")
SIDE = 7  # not divisible by the tile size in either direction
CHANNELS = 160  # packed as weights for 4 vectors and a remainder of 2


def residual() -> onnx.ModelProto:
    """Return a 1x1 convolution with a residual addition, and a depthwise layer of odd width."""
    rng = np.random.default_rng(0)
    scale, zero = np.float32(0.05), np.int8(3)
    layers = {"point": (CHANNELS, CHANNELS, 1, 1), "deep": (CHANNELS, 1, 3, 3)}
    constants: dict[str, Any] = {"scale": scale, "zero": zero, "no": np.int8(0)}
    for name, shape in layers.items():
        constants[name] = rng.integers(-127, 128, shape).astype(np.int8)
        constants[f"{name}_scale"] = rng.uniform(0.001, 0.002, CHANNELS).astype(np.float32)
        constants[f"{name}_bias"] = rng.integers(-500, 500, CHANNELS).astype(np.int32)

    def layer(source: str, name: str, **attributes: Any) -> onnx.NodeProto:
        names = [source, "scale", "zero", name, f"{name}_scale", "no", "scale", "zero", f"{name}_bias"]
        return helper.make_node("QLinearConv", names, [f"{name}_out"], **attributes)

    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    shape = [1, CHANNELS, SIDE, SIDE]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.INT8, shape) for name in ("data", "result")]
    added = ["deep_out", "scale", "zero", "point_out", "scale", "zero", "scale", "zero"]
    nodes = [
        layer("data", "deep", group=CHANNELS, pads=[1, 1, 1, 1]),
        layer("deep_out", "point"),
        helper.make_node("QLinearAdd", added, ["result"], domain="com.microsoft"),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        helper.make_graph(nodes, "residual", ends[:1], ends[1:], tensors), opset_imports=opsets, ir_version=8
    )


@cache
def factory() -> Factory:
    module, params = mlfc.import_model(residual())
    return mlfc.build(module, "c -mcpu=auto -mtriple=x86_64", params, module_name="residual")


def bodies(level: str) -> tuple[PrimFunc, PrimFunc]:
    """Return the kernels with products: the depthwise layer, and the one with the residual addition."""
    deep, point = sorted((kernel for kernel in factory().program.kernels if kernel.macs), key=lambda each: each.macs)
    return deep.at(level), point.at(level)


def tiles(kernel: PrimFunc) -> tuple[int, int]:
    """Return the number of stores to the output, and the number of vector accumulators in the code."""
    stores = [stmt for stmt in walk(kernel.body) if isinstance(stmt, ir.Store)]
    sums = {
        (stmt.buffer, *map(str, stmt.indices))
        for stmt in stores
        if stmt.buffer.name.startswith("sums") and stmt.buffer.scope == "local"
    }
    return sum(stmt.buffer is kernel.output for stmt in stores), len(sums)


@pytest.mark.parametrize("level", OLD)
def test_older_levels_have_one_kind_of_tile(level: str) -> None:
    """Check that blocks of channels have one copy of the products and results, with no code for remainder tiles."""
    deep, point = bodies(level)
    assert tiles(point) == (2, 2 * 5)  # for weights of 4 vectors and of 2, each of 5 pixels
    assert tiles(deep) == (1, 4)


def test_all_levels_compute_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    if this_platform().arch != "x86_64":
        pytest.skip("this machine is no x86-64")
    data = np.random.default_rng(1).integers(-128, 128, (1, CHANNELS, SIDE, SIDE)).astype(np.int8)
    session = onnxruntime.InferenceSession(residual().SerializeToString(), providers=["CPUExecutionProvider"])
    expected = np.asarray(session.run(None, {"data": data})[0])
    assert np.unique(expected).size > 40  # neither saturated nor constant
    names = [level.name for level in LEVELS.get("x86_64").levels]
    reached = names[: names.index(level_here(LEVELS.get("x86_64"))[0].name) + 1]
    for level in OLD[: len(reached)]:
        monkeypatch.setenv("MLFC_CPU", level)
        (found,) = mlfc.compile(residual(), "c -mcpu=auto").run({"data": data}).values()
        np.testing.assert_array_equal(found, expected)


ROWS = ((1,), (13,), (2, 7))
COMPACT = Features(packing_registers=32, fixed_point_lanes=8, compact=True)


def rows_layer(leading: tuple[int, ...]) -> tuple[relay.Function, Array]:
    """Return a dense layer of rows, and its weights."""
    weights = np.random.default_rng(2).integers(-128, 128, (40, 24)).astype(np.int8)
    x = relay.Var("x", relay.TensorType((*leading, 24), "int8"))
    numbers = [relay.const(np.int32(7)), relay.const(np.int32(0)), relay.const(0.5), relay.const(0.25)]
    call = relay.call("qnn.dense", [x, relay.const(weights), *numbers], units=40, out_dtype="int32")
    return group_of(call, [x]), weights


def test_dense_layers_of_some_rows_are_exact() -> None:
    layers = {leading: rows_layer(leading) for leading in ROWS}
    kernels = Kernels({leading: (group, COMPACT) for leading, (group, _) in layers.items()})
    for leading, (_, weights) in layers.items():
        data = np.random.default_rng(3).integers(-128, 128, (*leading, 24)).astype(np.int8)
        expected = (data.astype(np.int64) - 7) @ weights.T.astype(np.int64)
        np.testing.assert_array_equal(kernels[leading](data), expected)
        assert any("totals" in buffer.name for buffer in kernels[leading].group.prim.scratch)


def float_layer(data: tuple[int, ...], taps: int, filters: int) -> relay.Function:
    """Return a convolution of floats with a bias."""
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((taps, taps, data[3], filters)).astype(np.float32)
    x = relay.Var("x", relay.TensorType(data, "float32"))
    sizes: dict[str, Any] = {"padding": (taps // 2,) * 4, "data_layout": "NHWC", "kernel_layout": "HWIO"}
    call = relay.call("nn.conv2d", [x, relay.const(weights)], **sizes)
    bias = relay.const(rng.standard_normal(filters).astype(np.float32))
    return group_of(relay.call("nn.bias_add", [call, bias], axis=3), [x])


@pytest.mark.parametrize(("taps", "expected", "usual_sums"), [(1, 10, 18), (3, 8, 22)], ids=["one tap", "transforms"])
def test_floats_have_one_kind_of_tile_and_the_same_bits(taps: int, expected: int, usual_sums: int) -> None:
    """Sum 600 floats in pieces; on the newest level each piece is added for all tiles before the next piece starts."""
    group = float_layer((1, 13, 13, 600 if taps == 1 else 48), taps, 40)
    compact = replace(COMPACT, winograd=True)
    usual = replace(compact, compact=False)
    kernels = Kernels({"compact": (group, compact), "usual": (group, usual)})
    data = np.random.default_rng(5).standard_normal((1, 13, 13, 600 if taps == 1 else 48)).astype(np.float32)
    assert kernels["compact"](data).tobytes() == kernels["usual"](data).tobytes()
    found = {name: tiles(kernels[name].group.prim)[1] for name in ("compact", "usual")}
    assert found == {"compact": expected, "usual": usual_sums}
