"""Sequences and optionals that are resolved at import, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.errors import MlfcError
from tests.relay_run import run_main

RNG = np.random.default_rng(12)
X = RNG.standard_normal((7, 4)).astype(np.float32)
MODELS = {
    "parts of one size": "s = SplitToSequence <axis = 0> (x, three) r = SequenceAt (s, two) y = Neg (r)",
    "parts of several sizes": "s = SplitToSequence <axis = -2> (x, sizes) r = SequenceAt (s, minus) y = Neg (r)",
    "rows": "s = SplitToSequence <axis = 0, keepdims = 0> (x) y = ConcatFromSequence <axis = -1, new_axis = 1> (s)",
    "rows that keep their axis": "s = SplitToSequence <axis = 1> (x) y = ConcatFromSequence <axis = 1> (s)",
    "an insertion in front": """
        a = Neg (x) s = SequenceConstruct (x, a) b = Abs (x) t = SequenceInsert (s, b, zero)
        y = ConcatFromSequence <axis = 0> (t)""",
    "an insertion behind": """
        e = SequenceEmpty <dtype = 1> () s = SequenceInsert (e, x) a = Abs (x) t = SequenceInsert (s, a, one)
        y = ConcatFromSequence <axis = 1> (t)""",
    "an element erased": """
        s = SplitToSequence <axis = 0> (x, three) t = SequenceErase (s, zero) u = SequenceErase (t)
        n = SequenceLength (u) m = Cast <to = 1> (n) r = SequenceAt (u, zero) y = Add (r, m)""",
    "an optional": """
        o = Optional (x) h = OptionalHasElement (o) g = OptionalGetElement (o) f = Cast <to = 1> (h) y = Add (g, f)""",
    "constants": """
        s = SequenceConstruct (sizes, sizes) c = ConcatFromSequence <axis = 0> (s) l = SequenceAt (s, zero)
        t = SplitToSequence <axis = 0> (x, l) r = SequenceAt (t, one) n = Cast <to = 1> (c) m = ReduceSum (n)
        y = Add (r, m)""",
    "a sequence in branches": """
        p = ReduceSum <keepdims = 0> (x) c = Greater (p, nought)
        s = If (c) <
          then_branch = g1 () => (seq(float) t) { a = Neg (x) t = SequenceConstruct (x, a) },
          else_branch = g2 () => (seq(float) t) { a = Abs (x) t = SequenceConstruct (a, x) }
        >
        y = ConcatFromSequence <axis = 0> (s)""",
    "a graph for each element": """
        s = SplitToSequence <axis = 0> (x, three)
        u, v = SequenceMap <body = g (float[n, m] a, float[n, m] b, float[1] k) => (float[n, m] c, float[n, m] d)
          { c = Mul (a, k) d = Sub (a, b) }> (s, s, weight)
        w = ConcatFromSequence <axis = 0> (u) z = ConcatFromSequence <axis = 0> (v) y = Add (w, z)""",
}
CONSTANTS = (
    "<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 three = {3}, int64 minus = {-2}, "
    "int64[3] sizes = {2, 1, 4}, float nought = {0.0}, float[1] weight = {2.5}>"
)


def parsed(body: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g (float[7, 4] x) => (float[a, b] y) {CONSTANTS} {{ {body} }}'
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_computed_is_what_onnx_runtime_computes(name: str) -> None:
    source = parsed(MODELS[name])
    (expected,) = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": X})
    module, params = mlfc.import_model(source.SerializeToString())
    (found,) = run_main(module, {"x": X, **params})
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_optional_without_a_value_has_no_element() -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("Optional", [], ["o"], type=kind),
        helper.make_node("OptionalHasElement", ["o"], ["h"]),
        helper.make_node("OptionalHasElement", [], ["i"]),
        helper.make_node("Or", ["h", "i"], ["y"]),
    ]
    out = [helper.make_tensor_value_info("y", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", [], out)
    module, params = mlfc.import_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    )
    (found,) = run_main(module, params)
    assert not found
    nodes[1:] = [helper.make_node("OptionalGetElement", ["o"], ["y"])]
    refuse(helper.make_graph(nodes, "g", [], out), "the optional has no value")


def refuse(graph: onnx.GraphProto, message: str, **options: Any) -> None:
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString(), **options
        )


TWO_LENGTHS = """
    p = ReduceSum <keepdims = 0> (x) c = Greater (p, nought)
    s = If (c) <
      then_branch = g1 () => (seq(float) t) { t = SequenceConstruct (x, x) },
      else_branch = g2 () => (seq(float) t) { t = SequenceConstruct (x) }
    >
    y = SequenceAt (s, zero)"""
MAP_OF_TWO_LENGTHS = """
    s = SequenceConstruct (x, x) t = SequenceConstruct (x)
    u = SequenceMap <body = g (float[n, m] a, float[n, m] b) => (float[n, m] c) { c = Add (a, b) }> (s, t)
    y = SequenceAt (u, zero)"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = SplitToSequence <axis = 0> (x, three)", "the output 'y' is a sequence of 3"),
        ("s = SequenceConstruct (x) y = Relu (s)", "Relu takes tensors, but 's' is a sequence of 1"),
        ("s = SequenceConstruct (x) y = MaxRoiPool <pooled_shape = [1, 1]> (x, s)", "is not supported"),
        ("y = SequenceLength (x)", "expected a sequence as input 0, got a tensor"),
        ("s = SequenceConstruct (x) y = SequenceAt (s, one)", "position 1 is out of range for a sequence"),
        ("s = SequenceConstruct (x) y = SequenceAt (s, sizes)", "a position is one integer"),
        ("s = SequenceConstruct (x) a = Cast <to = 7> (x) y = SequenceAt (s, a)", "'position' that is not constant"),
        (
            "s = SequenceConstruct (x) t = SequenceInsert (s, x, minus) y = SequenceAt (t, zero)",
            "position -2 is out of range",
        ),
        (
            "s = SequenceConstruct (x) t = SequenceInsert (s, s) y = SequenceAt (t, zero)",
            "expected a tensor as input 1",
        ),
        ("s = SequenceEmpty () t = SequenceErase (s) y = SequenceLength (t)", "has no element to erase"),
        ("s = SequenceEmpty () y = ConcatFromSequence <axis = 0> (s)", "an empty sequence cannot be concatenated"),
        ("s = SplitToSequence (x, zero) y = SequenceLength (s)", "parts of 0 elements"),
        ("s = SplitToSequence <axis = 1> (x, sizes) y = SequenceLength (s)", "do not divide 4 elements"),
        ("s = SplitToSequence <axis = 2> (x) y = SequenceLength (s)", "axis 2 is outside"),
        (TWO_LENGTHS, "cannot return a sequence of 2 or a sequence of 1"),
        (MAP_OF_TWO_LENGTHS, "sequences of 2, 1 elements do not fit"),
    ],
)
def test_sequences_that_contradict_themselves_are_refused(body: str, message: str) -> None:
    refuse(parsed(body).graph, message)
    refuse(parsed(body).graph, ".", byoc=["onnxruntime"])


def test_a_small_file_cannot_ask_for_a_long_sequence() -> None:
    nodes = [helper.make_node("SplitToSequence", ["x"], ["s"]), helper.make_node("SequenceLength", ["s"], ["y"])]
    for shape in ([1 << 32, 0], [1 << 30]):
        given = helper.make_tensor_value_info("x", TensorProto.INT8, shape)
        graph = helper.make_graph(nodes, "g", [given], [helper.make_tensor_value_info("y", TensorProto.INT64, [])])
        refuse(graph, "exceeds")
    grown = [helper.make_node("SequenceConstruct", ["x"] * 9000, ["s0"])]
    grown += [helper.make_node("SequenceInsert", [f"s{index}", "x"], [f"s{index + 1}"]) for index in range(1500)]
    grown += [helper.make_node("SequenceLength", ["s1500"], ["y"])]
    given = helper.make_tensor_value_info("x", TensorProto.INT8, [1])
    graph = helper.make_graph(grown, "g", [given], [helper.make_tensor_value_info("y", TensorProto.INT64, [])])
    refuse(graph, "the work on constants and memory exceeds")
