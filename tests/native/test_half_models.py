"""Models of float16 and bfloat16 end to end: in C and by LLVM, by both executors and through an archive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlfc
from mlfc.tir import builder as tb
from mlfc.tir.half_floats import half_blocks, widen_halves
from mlfc.tir.interpreter import run
from mlfc.tir.ir import Buffer, Call, Load, PrimFunc
from mlfc.tir.visitor import own_exprs, walk, walk_expr

# tests/native compiles the same operators with the flags of libraries
pytestmark = pytest.mark.usefixtures("quick_builds")

X_SHAPE = (1, 3, 16, 16)
KINDS: dict[str, tuple[Any, int, float]] = {
    "float16": (np.float16, TensorProto.FLOAT16, 2**-10),
    "bfloat16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16, 2**-7),
}


def model(kind: str) -> onnx.ModelProto:
    """Return a small network with weights, inputs and outputs of one dtype."""
    dtype, code, _ = KINDS[kind]
    rng = np.random.default_rng(8)
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "v": (16, 8, 3, 3), "m": (64, 10), "scale": (10,), "shift": (10,)}
    weights = {name: (rng.standard_normal(shape) * 0.3).astype(dtype) for name, shape in shapes.items()}
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    constants.append(numpy_helper.from_array(np.array([1, -1]), "flat"))
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "v"], ["d"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["d"], ["s"]),
        helper.make_node("Mul", ["d", "s"], ["swish"]),
        helper.make_node("AveragePool", ["swish"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["a", "flat"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["g"]),
        helper.make_node("LayerNormalization", ["g", "scale", "shift"], ["l"], epsilon=1e-3),
        helper.make_node("Softmax", ["l"], ["y"]),
        helper.make_node("Tanh", ["l"], ["z"]),
    ]
    outputs = [helper.make_tensor_value_info(name, code, [1, 10]) for name in "yz"]
    graph = helper.make_graph(
        nodes, "half", [helper.make_tensor_value_info("x", code, X_SHAPE)], outputs, constants
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def expected(made: onnx.ModelProto, x: npt.NDArray[Any], kind: str) -> list[Any]:
    if kind == "float16":
        session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
        return list(session.run(None, {"x": x}))
    return list(ReferenceEvaluator(made).run(None, {"x": x}))  # ONNX Runtime does not support this convolution


@pytest.mark.usefixtures("quick_builds")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("target", "executor"), [("llvm", "aot"), ("c", "aot"), ("llvm", "graph"), ("c -mcpu=sapphirerapids", "aot")]
)
def test_models_of_halves_run_from_end_to_end(kind: str, target: str, executor: str, tmp_path: Path) -> None:
    dtype, _, unit = KINDS[kind]
    made = model(kind)
    x = np.random.default_rng(9).standard_normal(X_SHAPE).astype(dtype)
    compiled = mlfc.compile(made.SerializeToString(), target=target, executor=executor)
    compiled.export(tmp_path / "model.tar")
    runs = [compiled.run({"x": x})]
    if target == "llvm":
        runs.append(mlfc.load(tmp_path / "model.tar").run({"x": x}))
    for found in runs:
        for (name, ours), theirs in zip(found.items(), expected(made, x, kind), strict=True):
            assert ours.dtype == dtype, name
            difference = np.abs(ours.astype(np.float64) - np.asarray(theirs).astype(np.float64)).max()
            # about four roundings of intermediate tensors, which the references place differently
            assert difference <= 4 * unit, f"{name}: {difference}"


LAYERS: dict[str, tuple[str, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]], dict[str, Any]]] = {
    # operator, inputs, weights, attributes
    "conv": ("Conv", {"x": (1, 16, 9, 9)}, {"w": (20, 16, 3, 3), "b": (20,)}, {"pads": [1] * 4}),
    "pointwise": ("Conv", {"x": (1, 19, 5, 7)}, {"w": (33, 19, 1, 1)}, {}),
    "depthwise": ("Conv", {"x": (1, 18, 9, 9)}, {"w": (18, 1, 3, 3)}, {"pads": [1] * 4, "group": 18}),
    "transposed": ("ConvTranspose", {"x": (1, 16, 5, 5)}, {"w": (16, 16, 4, 4)}, {"strides": [2, 2]}),
    "few columns": ("ConvTranspose", {"x": (1, 32, 5, 5)}, {"w": (32, 2, 2, 2)}, {"strides": [2, 2]}),
    "dense": ("MatMul", {"x": (5, 70)}, {"w": (70, 37)}, {}),
    "long": ("MatMul", {"x": (1, 1100)}, {"w": (1100, 20)}, {}),
    "products": ("MatMul", {"x": (2, 9, 30), "y": (2, 30, 21)}, {}, {}),
    "row": ("MatMul", {"x": (2, 1, 30), "y": (2, 30, 85)}, {}, {}),
    "long row": ("MatMul", {"x": (1, 1100), "y": (1100, 19)}, {}, {}),
    "largest": ("MaxPool", {"x": (1, 17, 9, 9)}, {}, {"kernel_shape": [3, 3], "pads": [1] * 4}),
    "sum": ("ReduceSum", {"x": (33, 50)}, {}, {}),
    "gelu": ("Gelu", {"x": (300,)}, {}, {}),
}


def layers_model(kind: str) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, npt.NDArray[Any]]]:
    """Return a model with all layers, the same model in float32, and inputs."""
    dtype, code, _ = KINDS[kind]
    rng = np.random.default_rng(3)
    nodes, inputs, feeds, weights = [], {}, {}, {}
    for layer, (operator, taken, kept, attributes) in LAYERS.items():
        names = {name: f"{layer} {name}" for name in (*taken, *kept)}
        inputs |= {names[name]: shape for name, shape in taken.items()}
        feeds |= {names[name]: rng.standard_normal(shape).astype(dtype) for name, shape in taken.items()}
        weights |= {names[name]: (rng.standard_normal(shape) * 0.1).astype(dtype) for name, shape in kept.items()}
        nodes.append(helper.make_node(operator, list(names.values()), [layer], **attributes))

    def made(wide: bool) -> onnx.ModelProto:
        own = TensorProto.FLOAT if wide else code
        values = [numpy_helper.from_array(v.astype("f") if wide else v, name) for name, v in weights.items()]
        graph = helper.make_graph(
            nodes, "layers", [helper.make_tensor_value_info(name, own, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, own, None) for name in LAYERS], values,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

    return made(wide=False), made(wide=True), feeds


@pytest.mark.usefixtures("quick_builds")
@pytest.mark.parametrize(("kind", "target"), [("float16", "llvm"), ("float16", "c -mcpu=x86-64"), ("bfloat16", "llvm")])
def test_layers_of_halves_use_the_templates_of_float32(kind: str, target: str) -> None:
    dtype, _, unit = KINDS[kind]
    made, wide, feeds = layers_model(kind)
    session = onnxruntime.InferenceSession(wide.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {name: value.astype(np.float32) for name, value in feeds.items()})
    compiled = mlfc.compile(made, target=target)
    weights = [w for kernel in compiled.factory.program.kernels if kernel.macs for w in kernel.constants]
    assert {w.dtype for w in weights} == {"float32"}
    for (name, ours), theirs in zip(compiled.run(feeds).items(), expected, strict=True):
        assert ours.dtype == dtype, name
        difference = np.abs(ours.astype(np.float64) - theirs).max()
        assert difference <= unit * max(1, np.abs(theirs).max()), f"{name}: {difference}"


def test_values_stay_float32_between_operators() -> None:
    """Round a minimum or maximum once, and other operators as often as 16-bit operators would."""

    def half(op: str, *args: Any) -> Any:
        return tb.binary(op, *args)

    x, out = Buffer("x", (40,), "float16"), Buffer("out", (40,), "float16")
    stmts = tb.StmtBuilder()
    with stmts.loop(40, "i", "vectorized") as i:
        value = stmts.let("value", half("mul", tb.load(x, [i]), tb.const(3.0, "float16")))
        stmts.store(out, [i], half("max", half("add", value, tb.load(x, [i])), tb.const(0.0, "float16")))
    before = PrimFunc("tested", (x,), (), out, (), stmts.finish(), ())
    after = replace(before, body=half_blocks(widen_halves(before.body)))
    values = np.linspace(-3, 3, 40).astype(np.float16)
    np.testing.assert_array_equal(run(before, [values]), run(after, [values]))
    exprs = [node for stmt in walk(after.body) for expr in own_exprs(stmt) for node in walk_expr(expr)]
    assert sum(isinstance(node, Call) and node.name == "round_float16" for node in exprs) == 2  # one for the remainder
    assert {node.dtype for node in exprs if isinstance(node, Load) and node.buffer is x} == {"float16x16", "float16"}
