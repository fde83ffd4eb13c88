"""Runtime inputs that decide shapes: one import, many values, compared with ONNX's own evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlfc
from mlfc.errors import LimitError, MlfcError
from mlfc.relay.ir import IRModule
from tests.harness import loaded_by_llvm
from tests.relay_run import run_main

Array = np.ndarray[Any, Any]
X = np.random.default_rng(5).standard_normal((3, 4, 3)).astype(np.float32)


def model(operator: str, values: Sequence[Array], shape: Sequence[int | str], **attributes: Any) -> ModelProto:
    """Return a model of one node whose inputs are all runtime values, with a declared output shape."""
    names = [f"in{index}" for index in range(len(values))]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, values, strict=True)
    ]
    dtype = helper.np_dtype_to_tensor_dtype(values[0].dtype)
    node = helper.make_node(operator, names, ["out"], name="the_node", **attributes)
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("out", dtype, shape)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(module: IRModule, params: dict[str, Array], values: Sequence[Array]) -> Array:
    (found,) = run_main(module, {**{f"in{index}": value for index, value in enumerate(values)}, **params})
    return found


def whole(*values: int) -> Array:
    return np.array(values, np.int64)


def _cases() -> Iterator[Any]:
    one_by_one = [(X.reshape(3, 3, 4), whole(axis)) for axis in (0, 1, -2, -3)]
    yield "one of two axes", "ReduceSum", {"keepdims": 0}, (3, 4), one_by_one
    yield "squares", "ReduceSumSquare", {}, (1, 4, 3), [(X, whole(0)), (X, whole(-3))]
    pairs = [(X, whole(*axes)) for axes in ((0, 1), (1, 2), (-1, 1), (2, -2))]
    yield "two of three axes", "ReduceLogSumExp", {"keepdims": 0}, (3,), pairs
    yield "no axes", "ReduceMax", {"noop_with_empty_axes": 1}, (3, 4, 3), [(X, whole())]
    yield "running sum", "CumSum", {"exclusive": 1}, (3, 4, 3), [(X, np.array(axis)) for axis in (0, 1, 2, -1, -2)]
    cuts = [
        (X, whole(1, -2), whole(99, 99), whole(1, 2), whole(1, 1)),
        (X, whole(-1, 0), whole(-4, 3), whole(1, -1), whole(-1, 2)),
        (X, whole(-100, 2), whole(3, -100), whole(-2, 2), whole(1, -2)),
        (X, whole(99, -2), whole(0, 99), whole(1, 2), whole(-1, 1)),
    ]
    yield "cuts", "Slice", {}, (3, 3, 2), cuts
    yield "cuts along all axes", "Slice", {}, (1, 2, 3), [
        (X, whole(0, 1, 0), whole(1, 3, 3)), (X, whole(2, -3, -99), whole(9, -1, 9)),
    ]  # fmt: skip
    for mode in ("constant", "edge", "reflect", "wrap"):
        pads = [(X, whole(0, 1, 2, 0, 1, 0)), (X, whole(0, 0, 0, 0, 2, 2)), (X, whole(0, 2, 1, 0, 0, 1))]
        yield f"pads, {mode}", "Pad", {"mode": mode}, (3, 6, 5), pads
    named = [(X, whole(1, 2), np.float32(7.5), whole(2)), (X, whole(3, 0), np.float32(-1.0), whole(-1))]
    yield "pads of an axis", "Pad", {}, (3, 4, 6), named
    numbers = [(np.int64(3), np.int64(10), np.int64(2)), (np.int64(9), np.int64(0), np.int64(-3))]
    yield "whole steps", "Range", {}, None, numbers
    low = np.int32(-(2**31))
    ends = [(np.int32(1), low, np.int32(2)), (np.int32(2**31 - 9), low, np.int32(-(2**30)))]
    yield "steps between distant ends", "Range", {}, None, ends
    yield "steps", "Range", {}, (4,), [(np.float32(1.5), np.float32(3.4), np.float32(0.5))]


CASES = [pytest.param(*case[1:], id=case[0]) for case in _cases()]


@pytest.mark.parametrize(("operator", "attributes", "shape", "samples"), CASES)
def test_values_count_when_the_model_runs(
    operator: str, attributes: dict[str, Any], shape: Sequence[int] | None, samples: list[tuple[Array, ...]]
) -> None:
    imported: dict[tuple[int, ...], Any] = {}
    for sample in samples:
        values = [np.asarray(value) for value in sample]
        reference = model(operator, values, [None] * 3, **attributes)
        (expected,) = ReferenceEvaluator(reference).run(None, {f"in{index}": v for index, v in enumerate(values)})
        stated = tuple(shape or expected.shape)
        assert expected.shape == stated
        if stated not in imported:
            imported[stated] = mlfc.import_model(model(operator, values, stated, **attributes))
        found = run(*imported[stated], values)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_negative_pads_cut_as_constant_ones_do(mode: str) -> None:
    pads = whole(0, -1, 1, 0, 2, -1)
    late = mlfc.import_model(model("Pad", [X, pads], (3, 5, 3), mode=mode))
    fixed = mlfc.import_model(model("Pad", [X, pads], (3, 5, 3), mode=mode), values={"in1": pads})
    np.testing.assert_array_equal(run(*late, [X, pads]), run(*fixed, [X]))


@pytest.mark.parametrize(
    ("operator", "values", "shape"),
    [
        ("ReduceSum", [X, whole(1)], (1, 4, 3)),
        ("CumSum", [X, np.array(77)], (3, 4, 3)),
        ("Slice", [X, whole(2**62), whole(-(2**63)), whole(5), whole(-(2**63))], (3, 2, 3)),
        ("Pad", [X, whole(2**63 - 1, 0, -(2**63), 0, 0, 0)], (5, 4, 3)),
    ],
)
def test_a_value_that_contradicts_the_stated_shape_reads_nothing_else(
    operator: str, values: list[Array], shape: tuple[int, ...]
) -> None:
    assert run(*mlfc.import_model(model(operator, values, shape)), values).shape == shape


@pytest.mark.parametrize(
    ("operator", "values", "shape"),
    [
        ("ReduceSum", [X, whole(1)], (1, "n", 3)),  # a dynamic dimension
        ("ReduceSum", [X, whole(1)], (5, 5)),  # matches no axis
        ("Slice", [X, whole(1), whole(2)], (1, 4, 2)),  # the last axis is not sliced
        ("Reshape", [X, whole(6, 6)], (6, 5)),
        ("Pad", [X, whole(1, 1)], (3, 4)),
        ("ReduceSum", [np.zeros((1,) * 30, np.float32), whole(*range(15))], (2,) * 15),  # too many combinations to try
    ],
)
def test_where_the_stated_shape_says_not_enough_a_value_is_asked_for(
    operator: str, values: list[Array], shape: tuple[int | str, ...]
) -> None:
    with pytest.raises(MlfcError, match=r"the_node.*--value in1="):
        mlfc.import_model(model(operator, values, shape))


@pytest.mark.parametrize(
    ("operator", "values", "shape"),
    [
        ("Range", [np.int64(0), np.int64(1), np.int64(1)], (1 << 31,)),
        ("Slice", [X, whole(0), whole(9)], (1 << 28, 4, 3)),
        ("Pad", [X, whole(0, 0, 0, 1 << 28, 0, 0)], (1 << 28, 4, 3)),
    ],
)
def test_a_stated_extent_out_of_proportion_is_refused(
    operator: str, values: list[Array], shape: tuple[int, ...]
) -> None:
    with pytest.raises(LimitError, match="the_node"):
        mlfc.import_model(model(operator, [np.asarray(value) for value in values], shape))


def _integer_matrices() -> Iterator[Any]:
    rng = np.random.default_rng(6)
    a, b = rng.integers(0, 256, (2, 3, 5)).astype(np.uint8), rng.integers(-128, 128, (5, 4)).astype(np.int8)
    a[0], b[:, 0] = 255, -128
    rows, columns = np.array([0, 255, 7], np.uint8), np.array([-128, 127, 0, 3], np.int8)
    yield "of all rows", a, b, np.array(200, np.uint8), np.array([5], np.int8)
    yield "by row", a[1], b, rows, np.array(-7, np.int8)
    yield "by column", a, b, np.array(255, np.uint8), columns
    yield "by row and column", a[0], b, rows, columns


MATRICES = [pytest.param(*case[1:], id=case[0]) for case in _integer_matrices()]


@pytest.mark.parametrize(("a", "b", "of_a", "of_b"), MATRICES)
@pytest.mark.parametrize("late", [(), (2,), (3,), (2, 3)])
def test_zero_points_of_integer_matrices(a: Array, b: Array, of_a: Array, of_b: Array, late: tuple[int, ...]) -> None:
    given = model("MatMulInteger", (a, b, of_a, of_b), ("n",))
    given.graph.output[0].CopyFrom(helper.make_tensor_value_info("out", TensorProto.INT32, None))
    values = {f"in{index}": (of_a, of_b)[index - 2] for index in (2, 3) if index not in late}
    module, params = mlfc.import_model(given.SerializeToString(), values=values)
    inputs = {"in0": a, "in1": b, "in2": of_a, "in3": of_b}
    given_late = {name: value for name, value in inputs.items() if name not in values}
    (found,) = run_main(module, {**given_late, **params})
    less = of_a.astype(np.int64)[:, None] if of_a.ndim else of_a.astype(np.int64)
    np.testing.assert_array_equal(found, (a.astype(np.int64) - less) @ (b.astype(np.int64) - of_b.astype(np.int64)))


@pytest.mark.parametrize("late", [(1,), (3,), (1, 2, 3)])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("zeros", [[-7], [-128, 127, 0, 3, 5, -1, 100, 9]])
def test_zero_points_of_filters(zeros: list[int], groups: int, late: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    x = rng.integers(0, 256, (2, 4, 5, 4)).astype(np.uint8)
    weight = rng.integers(-128, 128, (8, 4 // groups, 3, 2)).astype(np.int8)
    arrays = [x, weight, np.array(77, np.uint8), np.array(zeros, np.int8)]
    given = model("ConvInteger", arrays, ("n",), group=groups, pads=[1, 0, 2, 1], strides=[2, 1])
    given.graph.output[0].CopyFrom(helper.make_tensor_value_info("out", TensorProto.INT32, None))
    inputs = {f"in{index}": array for index, array in enumerate(arrays)}
    values = {f"in{index}": arrays[index] for index in (1, 2, 3) if index not in late}
    module, params = mlfc.import_model(given.SerializeToString(), values=values)
    loaded = loaded_by_llvm(module, params)
    (found,) = loaded.run({name: array for name, array in inputs.items() if name not in values}).values()
    centred = weight.astype(np.float64) - np.reshape(zeros, (-1, 1, 1, 1))
    floats = model("Conv", (x.astype(np.float64), centred), ("n",), group=groups, pads=[1, 0, 2, 1], strides=[2, 1])
    expected = ReferenceEvaluator(floats).run(None, {"in0": x.astype(np.float64) - 77, "in1": centred})[0]
    np.testing.assert_array_equal(found, expected)


def test_a_late_zero_point_of_sums_that_leave_32_bits_is_refused() -> None:
    for channels, is_exact in ((3640, True), (3641, False)):
        x, zero = np.zeros((1, channels, 3, 3), np.uint8), np.array(3, np.uint8)
        given = model("ConvInteger", (x, np.ones((1, channels, 3, 3), np.uint8), zero), ("n",))
        given.graph.output[0].CopyFrom(helper.make_tensor_value_info("out", TensorProto.INT32, None))
        values = {"in1": np.full((1, channels, 3, 3), 255, np.uint8)}
        if is_exact:
            mlfc.import_model(given.SerializeToString(), values=values)
        else:
            with pytest.raises(MlfcError, match="--value in2="):
                mlfc.import_model(given.SerializeToString(), values=values)


# operator, attributes, input 0, the runtime value, the declared shape, and a value that contradicts it
CONTRADICTED: list[tuple[str, dict[str, Any], Array, Array, tuple[int, ...], Array]] = [
    ("Expand", {}, X[:, :1, 0], whole(3, 4), (3, 4), whole(3, 5)),
    ("Reshape", {}, X[:, :, 0], whole(-1, 3), (4, 3), whole(3, 4)),
    ("Tile", {}, X[:, :, 0], whole(2, 1), (6, 4), whole(1, 2)),
    ("ReduceSum", {"keepdims": 0}, X, whole(-3), (4, 3), whole(1)),
    ("Squeeze", {}, X[None, :, :1, 0], whole(0), (3, 1), whole(2)),
    ("Unsqueeze", {}, X[:, :1, 0], whole(0), (1, 3, 1), whole(2)),
    ("Pad", {}, X[:, :, 0], whole(0, 2, 0, 0), (3, 6), whole(0, 1, 0, 0)),
    ("CumSum", {}, X, np.array(-1), (3, 4, 3), np.array(3)),
    ("Slice", {}, X, whole(2), (2, 4, 3), whole(1)),
    ("Compress", {"axis": 1}, X, np.array([0, 1, 1], bool), (3, 2, 3), np.array([1, 1, 1], bool)),
]


def _contradicted() -> tuple[ModelProto, dict[str, Array]]:
    inputs: dict[str, Array] = {}
    nodes, outputs = [], []
    for index, (operator, attributes, data, value, shape, _) in enumerate(CONTRADICTED):
        inputs |= {f"x{index}": np.ascontiguousarray(data), f"v{index}": value}
        names = [f"x{index}", *(["zero"] if operator == "Slice" else []), f"v{index}"]
        nodes.append(helper.make_node(operator, names, [f"y{index}"], **attributes))
        outputs.append(helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, shape))
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    graph = helper.make_graph(nodes, "g", given, outputs, [numpy_helper.from_array(whole(0), "zero")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), inputs


@pytest.mark.parametrize(("target", "executor"), [("c", "aot"), ("llvm", "graph"), ("llvm", "vm")])
def test_values_that_contradict_declared_shapes_end_the_run(target: str, executor: str) -> None:
    given, inputs = _contradicted()
    compiled = mlfc.compile(given.SerializeToString(), target, executor=executor)
    expected = ReferenceEvaluator(given).run(None, inputs)
    for found, wanted in zip(compiled.run(inputs).values(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    for index, (operator, *_, wrong) in enumerate(CONTRADICTED):
        what = "is one of its tensor" if operator == "CumSum" else "gives"
        message = f"'{operator} #{index}' {what}" if executor == "vm" else "contradict a shape that the model declares"
        with pytest.raises(MlfcError, match=message):
            compiled.run({**inputs, f"v{index}": wrong})
