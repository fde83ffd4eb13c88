"""Passes that combine constants or drop operators keep the results at edge values."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

import mlfc
from mlfc.frontend.onnx import import_onnx
from mlfc.transform import pipeline
from mlfc.transform.bind_params import BindParams
from tests.relay_run import operators, run_main

Array = npt.NDArray[Any]
INF, NAN = np.inf, np.nan
EDGES = np.asarray([1, -1, 2, 0.0, -0.0, 1e-30, -1e30, 1e38, 3e38, 1e-40, 88.5, INF, -INF, NAN], np.float32)

# an operator and its constant second argument; both limits of `Clip`
CHAINS: dict[str, list[tuple[str, Any]]] = {
    "factors that overflow": [("Mul", 1e30), ("Mul", 1e30)],
    "factors that vanish": [("Mul", 1e-30), ("Mul", 1e-30)],
    "factors that are undone": [("Mul", 1e30), ("Mul", 1e-30)],
    "a factor and a divisor": [("Mul", 1e30), ("Div", 1e30)],
    "divisors": [("Div", 1e-30), ("Div", 1e-30)],
    "a sum that is undone": [("Add", 1e8), ("Add", -1e8)],
    "a difference that is undone": [("Sub", 1e8), ("Add", 1e8)],
    "a factor of a sum": [("Add", -1e30), ("Mul", 1e30)],
    "plus zero": [("Add", 0.0)],
    "plus minus zero": [("Add", -0.0)],
    "minus zero": [("Sub", 0.0)],
    "minus minus zero": [("Sub", -0.0)],
    "times zero": [("Mul", 0.0)],
    "times one": [("Mul", 1.0)],
    "by a power of two": [("Div", 4.0)],
    "by a small power of two": [("Div", 2.0**-60)],
    "by the smallest number": [("Div", 2.0**-149)],
    "the larger of NaN": [("Max", NAN)],
    "the smaller of NaN": [("Min", NAN)],
    "the larger of infinity": [("Max", INF)],
    "square root": [("Pow", 0.5)],
    "inverse square root": [("Pow", -0.5)],
    "default limits": [("Clip", ())],
    "one limit": [("Clip", (0.0,))],
    "an infinite limit": [("Clip", (-INF, INF))],
    "a limit of NaN": [("Clip", (NAN, 1.0))],
}


def clipped(x: Array, limits: tuple[float, ...]) -> Array:
    low, high = np.float32([*limits, *np.asarray([-1, 1], np.float32)[len(limits) :] * np.finfo(np.float32).max])
    x = np.where(x < low, low, x)
    return np.where(x > high, high, x)


NUMPY: dict[str, Any] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum,
    "Clip": clipped,
    # numpy's special case for square roots differs from pow for -0.0 and minus infinity
    "Pow": lambda x, power: np.asarray(np.power(x.astype(np.float64), np.full(x.shape, power)), np.float32),
}  # fmt: skip


def expected(chain: list[tuple[str, Any]], x: Array) -> Array:
    with np.errstate(all="ignore"):
        values = [(op, value if op == "Clip" else np.float32(value)) for op, value in chain]
        return reduce(lambda so_far, step: np.asarray(NUMPY[step[0]](so_far, step[1]), np.float32), values, x)


class Maker:
    """A collection of nodes that read an input ``x``."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, operator: str, *inputs: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [f"t{len(self.nodes)}"], **attrs))
        return str(self.nodes[-1].output[0])

    def chain(self, source: str, chain: list[tuple[str, Any]], dtype: Any = np.float32) -> str:
        for operator, value in chain:
            values = value if isinstance(value, tuple) else (value,)
            source = self.node(operator, source, *(self.constant(item, dtype) for item in values))
        return source

    def model(self, x: Array, *outputs: str, output_dtype: Any = None) -> bytes:
        kind, result = (helper.np_dtype_to_tensor_dtype(np.dtype(each)) for each in (x.dtype, output_dtype or x.dtype))
        graph = helper.make_graph(
            self.nodes, "g", [helper.make_tensor_value_info("x", kind, x.shape)],
            [helper.make_tensor_value_info(name, result, None) for name in outputs], self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 18)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def check(found: Array, wanted: Array, name: str) -> None:
    """Fail unless values are equal, including the signs of zeros."""
    np.testing.assert_array_equal(found, wanted, name)
    np.testing.assert_array_equal(np.signbit(found[wanted == 0]), np.signbit(wanted[wanted == 0]), name)


def test_chains_round_and_overflow_as_written() -> None:
    maker = Maker()
    outputs = {name: maker.chain("x", chain) for name, chain in CHAINS.items()}
    found = mlfc.compile(maker.model(EDGES, *outputs.values()), "llvm").run({"x": EDGES})
    for name, output in outputs.items():
        wanted = expected(CHAINS[name], EDGES)
        if "square root" in name:
            np.testing.assert_allclose(found[output], wanted, 2e-7, err_msg=name)
        else:
            check(found[output], wanted, name)


# the weight, and the operators that follow the layer
LAYERS: dict[str, tuple[float, list[tuple[str, Any]]]] = {
    "products that are subnormal": (1e-20, [("Mul", 1e-20)]),
    "products that vanish": (1e-20, [("Mul", 1e-30)]),
    "products that overflow": (1e20, [("Mul", 1e20)]),
    "a product of extremes": (1e30, [("Mul", 1e-30)]),
    "a product of other extremes": (1e-30, [("Mul", 1e30)]),
    "an infinite factor": (1.0, [("Mul", INF)]),
    "an infinite factor of zero": (0.0, [("Mul", INF)]),
    "a factor of NaN": (1.0, [("Mul", NAN)]),
    "a factor of zero": (3.0, [("Mul", 0.0)]),
    "a bias that vanishes": (1.0, [("Add", 1e-30), ("Mul", 1e-9)]),
    "biases that cancel": (1.0, [("Add", 1e8), ("Add", -1e8)]),
    "biases that overflow": (1.0, [("Add", 3e38), ("Add", 3e38)]),
    "infinite biases": (1.0, [("Add", INF), ("Add", -INF)]),
}
ORDINARY: dict[str, list[tuple[str, Any]]] = {
    "factor": [("Mul", 0.3)],
    "factors": [("Mul", 0.3), ("Mul", 7.0)],
    "bias and factor": [("Add", 0.5), ("Mul", 0.3)],
    "biases": [("Add", 0.5), ("Sub", 0.2)],
    "batch norm": [("Add", 0.5), ("Mul", 0.3), ("Add", -0.1), ("Mul", 2.0)],
}


def layers(cases: dict[str, tuple[float, list[tuple[str, Any]]]], x: Array) -> tuple[bytes, dict[str, list[str]]]:
    """Return a model with a convolution and a dense layer of one weight per case, and the names of their outputs."""
    maker, outputs = Maker(), {}
    for name, (weight, chain) in cases.items():
        conv = maker.node("Conv", "x", maker.constant(np.full((1, 1, 1, 1), weight)))
        dense = maker.node("MatMul", "x", maker.constant(np.full((5, 5), weight) * np.eye(5)))
        outputs[name] = [maker.chain(source, chain) for source in (conv, dense)]
    return maker.model(x, *(output for pair in outputs.values() for output in pair)), outputs


def test_constants_behind_layers_stay_in_range() -> None:
    x = np.asarray([[[[1e-30, 1, -3, 1e10, 1e30]]]], np.float32)
    model, outputs = layers(LAYERS, x)
    found = mlfc.compile(model, "llvm").run({"x": x})
    for name, pair in outputs.items():
        weight, chain = LAYERS[name]
        wanted = expected([("Mul", weight), *chain], x)
        for output in pair[: 1 if "infinite" in name or "NaN" in name else 2]:  # sums of zeros times infinity differ
            np.testing.assert_allclose(found[output], wanted, 1e-6, 0, err_msg=name)


def test_ordinary_constants_fold_into_layers() -> None:
    x = np.asarray([[[[0.5, 1, -3, 4, 2]]]], np.float32)
    for name, chain in ORDINARY.items():
        model, _ = layers({name: (1.5, chain)}, x)
        module = pipeline.run(*import_onnx(model, "layers"))
        for group in operators(module):
            names = [part for part in group.split("+") if part != "reshape"]
            assert names in (["nn.conv2d"], ["nn.dense"], ["nn.conv2d", "nn.bias_add"], ["nn.dense", "nn.bias_add"], [])


@pytest.mark.parametrize(("factor", "merges"), [(0.3, True), (1e-30, False), (INF, False)])
def test_a_batch_norm_takes_the_factor_and_addend_behind_it(factor: float, merges: bool) -> None:
    """Merge the factor and addend into the norm, but leave a product and a sum of the model as they are."""
    x = np.asarray([[[[0.5, 1, -3, 4, 2]]]], np.float32)
    maker = Maker()
    norm = maker.node("BatchNormalization", "x", *(maker.constant([value]) for value in (2.0, 0.5, 0.25, 4.0)))
    output = maker.chain(norm, [("Mul", factor), ("Add", 0.125)])
    affine = maker.chain("x", [("Mul", 2.0), ("Add", 0.5), ("Mul", 0.3), ("Add", 0.125)])
    module = pipeline.run(*import_onnx(maker.model(x, output, affine), "norm"))
    twice = "multiply+add+multiply+add"
    assert sorted(operators(module)) == sorted(["multiply+add" if merges else twice, twice])
    wanted = ((x - 0.25) / np.sqrt(np.float32(4 + 1e-5)) * 2 + 0.5) * np.float32(factor) + np.float32(0.125)
    np.testing.assert_allclose(run_main(module, {"x": x})[0], wanted, 1e-5)


def test_biases_of_quantized_layers_are_rounded_only_where_sums_are() -> None:
    """Keep a bias that is not an integer multiple of the sums' scale in floats."""
    x = np.asarray([[[[0.5, 1, -1.5, 2, 0]]]], np.float32)
    for quantizes in (False, True):
        maker = Maker()
        scale, zero = maker.constant(0.25), maker.constant(0, np.int8)
        data = maker.node("DequantizeLinear", maker.node("QuantizeLinear", "x", scale, zero), scale, zero)
        weight = maker.node("DequantizeLinear", maker.constant(np.full((1, 1, 1, 1), 3), np.int8), scale, zero)
        output = maker.node("Conv", data, weight, maker.constant([0.0299]))
        if quantizes:
            output = maker.node("DequantizeLinear", maker.node("QuantizeLinear", output, scale, zero), scale, zero)
        module, params = import_onnx(maker.model(x, output), "quantized")
        (found,) = run_main(pipeline.run(module, params), {"x": x})
        wanted = 0.75 * x + np.float32(0.0299)
        np.testing.assert_allclose(found, np.rint(wanted / 0.25) * 0.25 if quantizes else wanted, 1e-6)
        assert ("qnn.requantize" in "+".join(operators(pipeline.run(module, params)))) == quantizes


@pytest.mark.parametrize("scale", [0.5, -0.5, 0.0, 1e38, INF, NAN])
def test_codes_are_computed_with_where_scales_keep_their_order(scale: float) -> None:
    x = np.asarray([[3, 0, 5, 127, -128]], np.int8)
    maker = Maker()
    params = maker.constant(scale), maker.constant(3, np.int8)
    data = maker.node("DequantizeLinear", "x", *params)
    again = maker.node("DequantizeLinear", maker.node("QuantizeLinear", data, *params), *params)
    model = maker.model(x, maker.node("Relu", data), again, output_dtype=np.float32)
    module, weights = import_onnx(model, "codes")
    with np.errstate(all="ignore"):
        found = run_main(pipeline.run(module, weights), {"x": x})
        for result, wanted in zip(found, run_main(BindParams(weights)(module), {"x": x}), strict=True):
            np.testing.assert_array_equal(result, wanted)
            assert np.isnan(result).all() == np.isnan(scale)


@pytest.mark.parametrize("weight", [2.0, INF])
def test_zeros_around_a_layer_meet_its_weights(weight: float) -> None:
    x = np.asarray([[[[1, 2, 3]]]], np.float32)
    maker = Maker()
    padded = maker.node("Pad", "x", maker.constant([0, 0, 0, 1, 0, 0, 0, 1], np.int64))
    output = maker.node("Conv", padded, maker.constant(np.full((1, 1, 1, 1), weight)))
    module = pipeline.run(*import_onnx(maker.model(x, output), "padded"))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            run_main(module, {"x": x})[0], np.float32(weight) * np.pad(x[0, 0], ((0, 0), (1, 1)))[None, None]
        )
    assert ("nn.pad" in "+".join(operators(module))) == np.isinf(weight)


def test_factors_of_halves_are_multiplied_as_in_float32() -> None:
    """Multiply in float32, as ONNX Runtime computes chains of them."""
    x = np.asarray([300, 2], np.float16)
    maker = Maker()
    output = maker.chain("x", [("Mul", 300.0), ("Mul", 1 / 300)], np.float16)
    found = mlfc.compile(maker.model(x, output), "llvm").run({"x": x})[output]
    np.testing.assert_allclose(found, x, 2e-3)


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_constants_of_no_elements(shape: tuple[int, ...]) -> None:
    x = np.ones((1,) * len(shape), np.float32)
    for operator in ("Div", "Mul", "Add", "Sub", "Pow"):
        maker = Maker()
        module = pipeline.run(*import_onnx(maker.model(x, maker.chain("x", [(operator, np.ones(shape))])), "none"))
        assert module.main.body.type.shape == shape
