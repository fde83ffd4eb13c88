"""Damaged ONNX and TFLite models: those that `check` accepts compile, the others raise one coded error."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzz.mutation import BLIND
from fuzz.python_readers import Target

_DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits_int8.tflite"
# the limits per model allow many steps, and each model is compiled twice
_CALLS = 200_000_000
_NUMBERS = (-(2**63), -(2**31), -3, -2, -1, 0, 1, 2, 3, 5, 7, 2**15, 2**31 - 1, 2**31, 2**35, 2**63 - 1)
_REALS = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.0, 1e-45, 1e-8, 0.5, 2.0, 1e30, 3e38)
_TEXTS = ("", "SAME_UPPER", "linear", "reflect", "\0", "*/", "é", "x" * 3000, "ij,jk->ik")
_KINDS = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8,
          TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.STRING)  # fmt: skip


def targets() -> tuple[Target, ...]:
    """Return the importers, each followed by the compiler, as readers."""
    return (
        Target("ONNX model", compiles_as_checked, onnx_seeds(), (onnx_changed,) * 6 + BLIND, _CALLS),
        Target("TFLite model", compiles_as_checked, tflite_seeds(), (tables_changed,) * 4 + BLIND, _CALLS),
        Target("open ONNX model", compiles_open, open_seeds(), (onnx_changed,) * 6 + BLIND, _CALLS),
        Target("open TFLite model", compiles_open, tflite_seeds(), (tables_changed,) * 4 + BLIND, _CALLS),
    )


def compiles_as_checked(data: bytes) -> None:
    """Check a model and compile it; raise AssertionError if they disagree, or the model's error."""
    import mlfc
    from mlfc.errors import InternalError, MlfcError

    problems = mlfc.check(data)
    for problem in problems:
        if isinstance(problem, InternalError):
            raise problem
    try:
        mod, params = mlfc.import_model(data)
        mlfc.build(mod, params=params)
    except InternalError:
        raise
    except MlfcError as error:
        if problems:
            raise
        try:
            compiles_open(data)  # the check leaves runtime values to the run
        except InternalError:
            raise
        except MlfcError:
            raise AssertionError(f"compile rejects a model that check accepts: {error}") from error
    if problems:
        raise AssertionError(f"compile accepts a model that check rejects: {problems[0]}")


def compiles_open(data: bytes) -> None:
    """Import a model with runtime values, and compile it for the virtual machine, or raise its error."""
    import mlfc
    from mlfc.frontend import import_model

    mod, params = import_model(data, dynamic=True)
    mlfc.build(mod, params=params, executor="vm")


def open_seeds() -> list[bytes]:
    """Return small models with dynamic dimensions: data-dependent shapes, branches, loops and sequences."""
    from onnx import parser

    bodies = (
        """agraph (float[n, 4] x, float[m, 4] w) => (float[a, b] y) {
            p = NonZero (x)  q = Transpose <perm = [1, 0]> (p)  g = GatherND (x, q)  s = Shape (g)
            z = Constant <value = int64[1] {0}> ()  k = Gather (s, z)  o = Constant <value = int64[1] {1}> ()
            t = Concat <axis = 0> (k, o)  r = Reshape (g, t)  h = MatMul (r, u)  u = Gather (w, z)
            y = Softmax <axis = 0> (h) }""",
        """agraph (float[n, c, h, 6] x) => (float[a, b, d, e] y, float[f] v) {
            two = Constant <value = float[4] {1., 1., 2., 2.}> ()  r = Resize <mode = "linear"> (x, , two)
            p = AveragePool <kernel_shape = [2, 3], strides = [2, 2], ceil_mode = 1> (r)  y = Concat <axis = 2> (p, p)
            m = Constant <value = int64[1] {-1}> ()  l = Reshape (p, m)  i = Constant <value = int64[1] {2}> ()
            v, w = TopK (l, i) }""",
        """agraph (float[n, 3] x, bool go, int64 turns) => (float[a, 3] y, float[b] z) {
            one = Constant <value = float {1.}> ()
            y, z = Loop (turns, go, x) <
                body = grow (int64 i, bool c, float[k, 3] s) => (bool d, float[l, 3] t, float m) {
                    d = Identity (c)  p = Add (s, one)  t = Concat <axis = 0> (p, x)
                    m = ReduceMax <keepdims = 0> (p) }> }""",
        """agraph (float[n, 3] x, float f) => (float[a, b] y) {
            zero = Constant <value = float {0.}> ()  c = Less (f, zero)  two = Constant <value = int64 {2}> ()
            y = If (c) <then_branch = some () => (float[d, e] r) {
                p = SplitToSequence <axis = 0> (x, two)  i = Constant <value = int64 {-1}> ()  l = SequenceAt (p, i)
                q = SequenceInsert (p, l)  r = ConcatFromSequence <axis = 0> (q) },
              else_branch = none () => (float[g, h] o) { o = Neg (x) }> }""",
        """agraph (float[3] s, float[n, 3] x, seq(float[k]) q) => (float[3] y, float[a, 3] z, seq(float[b]) u) {
            y, z = Scan <num_scan_inputs = 1, body = step (float[3] t, float[3] e) => (float[3] w, float[3] v) {
                w = Add (t, e)  v = Relu (w) }> (s, x)
            u = SequenceMap (q) <body = each (float[k] i) => (float[l] o) { o = Neg (i) }> }""",
        """agraph (float[n] x, int64 i, bool c) => (float[a] y, seq(float) q) {
            p = SequenceConstruct (x)
            q = If (c) <then_branch = more () => (seq(float) r) {
                k = Constant <value = int64[1] {0}> ()  m = Unsqueeze (x, k)  s = ReduceSum <keepdims = 0> (x)
                t = SequenceInsert (p, s)  r = SequenceInsert (t, m, i) },
              else_branch = less () => (seq(float) o) { o = SequenceErase (p, i) }>
            y = SequenceAt (q, i) }""",
    )
    opset = '<ir_version: 8, opset_import: ["" : 18]>'
    return [bytes(parser.parse_model(f"{opset} {body}").SerializeToString()) for body in bodies]


def onnx_seeds() -> list[bytes]:
    """Return small models that together have most kinds of attributes and operands."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 2, 3, 3)).astype(np.float32),
        "d": rng.standard_normal((16, 3)).astype(np.float32),
        "scale": np.array(0.05, np.float32),
        "zero": np.array(3, np.uint8),
        "shape": np.array([0, -1]),
        "axes": np.array([1]),
        "starts": np.array([0]),
        "ends": np.array([2]),
        "pads": np.array([0, 1, 0, 1]),
        "sizes": np.array([1, 4, 4, 4]),
        "indices": np.array([0, 2, 1]),
        "four": np.ones(4, np.float32),
        "q": rng.integers(-9, 9, (3, 3), np.int8),
    }
    node = helper.make_node
    image = {"x": (1, 2, 4, 4)}
    conv = node("Conv", ["x", "w", "four"], ["c"], pads=[1, 1, 1, 1], strides=[1, 1], dilations=[1, 1], group=1)
    flat = [conv, node("Flatten", ["c"], ["f"], axis=2), node("MatMul", ["f", "d"], ["m"])]
    graphs: list[tuple[list[onnx.NodeProto], dict[str, tuple[int, ...]], str]] = [
        ([conv, node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)], image, "y"),
        ([*flat, node("Softmax", ["m"], ["y"], axis=-1)], image, "y"),
        ([node("ConvTranspose", ["c", "w"], ["y"], strides=[2, 2], output_padding=[1, 1])], {"c": (1, 4, 3, 3)}, "y"),
        ([node("Resize", ["x", "", "", "sizes"], ["r"], mode="linear"), node("LRN", ["r"], ["y"], size=3)],
         {"x": (1, 4, 2, 2)}, "y"),
        ([node("Slice", ["x", "starts", "ends", "axes"], ["s"]), node("Pad", ["s", "pads"], ["p"], mode="reflect"),
          node("ReduceSum", ["p", "axes"], ["y"], keepdims=0)], {"x": (3, 4)}, "y"),
        ([node("Einsum", ["x", "q3", "x"], ["y"], equation="ij,jk,lk->il")], {"x": (3, 3), "q3": (3, 3)}, "y"),
        ([node("QuantizeLinear", ["x", "scale", "zero"], ["a"], axis=0),
          node("DequantizeLinear", ["a", "scale", "zero"], ["b"]), node("Gemm", ["b", "x"], ["y"], alpha=0.5)],
         {"x": (3, 3)}, "y"),
        ([node("Gather", ["x", "indices"], ["g"], axis=0), node("LayerNormalization", ["g", "four"], ["n"]),
          node("Split", ["n"], ["y", "z"], axis=1)], {"x": (3, 4)}, "y"),
        ([node("BatchNormalization", ["x", "four", "four", "four", "four"], ["b"], epsilon=0.1),
          node("PRelu", ["b", "scale"], ["p"]), node("GlobalAveragePool", ["p"], ["g"]),
          node("Clip", ["g", "scale"], ["y"])], {"x": (1, 4, 2, 2)}, "y"),
        ([node("ArgMax", ["x"], ["a"], axis=1, keepdims=1), node("Cast", ["a"], ["c"], to=1),
          node("Where", ["t", "c", "x"], ["y"]), node("Greater", ["x", "scale"], ["t"])], {"x": (3, 4)}, "y"),
        ([node("Tile", ["x", "sizes"], ["t"]), node("Transpose", ["t"], ["u"], perm=[0, 2, 3, 1]),
          node("DepthToSpace", ["u"], ["y"], blocksize=2)], {"x": (1, 1, 1, 4)}, "y"),
        ([node("ConstantOfShape", ["sizes"], ["k"]), node("CumSum", ["k", "axes0"], ["s"], exclusive=1),
          node("Expand", ["x", "sizes"], ["e"]), node("Pow", ["e", "s"], ["y"])], {"x": (1,)}, "y"),
    ]  # fmt: skip
    return [_onnx_model(nodes, inputs, output, {**weights, "axes0": np.array(0)}) for nodes, inputs, output in graphs]


def _onnx_model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], output: str, weights: dict[str, Any]
) -> bytes:
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "seed",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=output)],
        [numpy_helper.from_array(value, name) for name, value in weights.items() if name in read],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def onnx_changed(seed: bytes, chance: random.Random) -> bytes:
    """Return a model with one to three structural changes."""
    model = onnx.ModelProto.FromString(seed)
    for _ in range(chance.randint(1, 3)):
        chance.choice(_CHANGES)(model, chance)
    return bytes(model.SerializeToString())


def _node(model: onnx.ModelProto, chance: random.Random) -> onnx.NodeProto:
    """Return a node of the graph, or of one of its subgraphs."""
    node = chance.choice(model.graph.node)
    graphs = [item.g for item in node.attribute if item.type == onnx.AttributeProto.GRAPH and item.g.node]
    return chance.choice(chance.choice(graphs).node) if graphs and chance.random() < 0.7 else node


def _change_attribute(model: onnx.ModelProto, chance: random.Random) -> None:
    node = _node(model, chance)
    if not node.attribute:
        return
    attribute = chance.choice(node.attribute)
    if attribute.ints and chance.random() < 0.7:
        attribute.ints[chance.randrange(len(attribute.ints))] = chance.choice(_NUMBERS)
        return
    values: list[Any] = [
        chance.choice(_NUMBERS), chance.choice(_REALS), chance.choice(_TEXTS), [chance.choice(_NUMBERS)] * 2,
        [chance.choice(_REALS)], np.zeros(chance.randrange(3), np.float32),
    ]  # fmt: skip
    value = chance.choice(values)
    value = numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
    attribute.CopyFrom(helper.make_attribute(attribute.name, value))


def _change_operands(model: onnx.ModelProto, chance: random.Random) -> None:
    node = _node(model, chance)
    known = [item.name for item in (*model.graph.input, *model.graph.initializer)]
    names = [*known, *(name for other in model.graph.node for name in other.output), ""]
    kind = chance.randrange(3)
    if kind == 0 or not node.input:
        node.input.append(chance.choice(names))
    elif kind == 1:
        del node.input[chance.randrange(len(node.input))]
    else:
        node.input[chance.randrange(len(node.input))] = chance.choice(names)


def _change_operator(model: onnx.ModelProto, chance: random.Random) -> None:
    from mlfc.frontend.onnx import table

    _node(model, chance).op_type = chance.choice(table.supported())


def _change_input(model: onnx.ModelProto, chance: random.Random) -> None:
    kind = chance.choice(model.graph.input).type.tensor_type
    if chance.random() < 0.5:
        kind.elem_type = chance.choice(_KINDS)
    elif kind.shape.dim and chance.random() < 0.3:
        chance.choice(kind.shape.dim).dim_param = chance.choice(("n", "m", "?", "", *_TEXTS))
    elif kind.shape.dim:
        chance.choice(kind.shape.dim).dim_value = chance.choice((0, 1, 2, 3, 5, 64, 1 << 20, 1 << 40, -1))


def _change_weight(model: onnx.ModelProto, chance: random.Random) -> None:
    if not model.graph.initializer:
        return
    tensor = chance.choice(model.graph.initializer)
    shape = [chance.choice((0, 1, 1, 2, 3, 4)) for _ in range(chance.randrange(5))]
    dtype = chance.choice(("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"))
    number = chance.choice((0, 1, 2, 3, 7, 100, -1, -2, 2**31, 2**62))
    with np.errstate(all="ignore"):
        value = np.full(shape, number).astype(dtype)
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def _change_opset(model: onnx.ModelProto, chance: random.Random) -> None:
    model.opset_import[0].version = chance.choice((7, 9, 10, 11, 12, 13, 16, 18, 19, 21, 23))


def _change_name(model: onnx.ModelProto, chance: random.Random) -> None:
    name = chance.choice((*_TEXTS, "\n*/ int main", "??/", "\\\n", "\u202eabc"))
    node = chance.choice(model.graph.node)
    if chance.random() < 0.5:
        node.name = name
    elif node.output:
        node.output[0] = name


_CHANGES: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    _change_attribute, _change_attribute, _change_operands, _change_operator, _change_input, _change_weight,
    _change_weight, _change_opset, _change_name,
)  # fmt: skip


def tflite_seeds() -> list[bytes]:
    """Return a quantized network with convolutions, pools and dense layers."""
    return [_DIGITS.read_bytes()]


def tables_changed(seed: bytes, chance: random.Random) -> bytes:
    """Return a flatbuffer with small integers of its tables replaced: types, shapes, options, indices."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(8, len(data) - 4) & ~3
        old = int.from_bytes(data[at : at + 4], "little")
        if old < 1024 or old > 2**32 - 1024:  # most likely a number, not an offset or weights
            new = chance.choice((0, 1, 2, 3, 4, 7, 9, 16, 2**15, 2**31 - 1, 2**31, 2**32 - 1))
            data[at : at + 4] = new.to_bytes(4, "little")
        else:
            data[at] = chance.randrange(32)
    return bytes(data)
