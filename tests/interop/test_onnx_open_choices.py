"""Choices of an import with dynamic dimensions, and their checks at run time: branches, bounds, runtime shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

import mlfc
from mlfc.errors import InputError, MlfcError
from mlfc.frontend.onnx import importer
from mlfc.support.dims import bounds
from tests.interop.test_onnx_dynamic import FLOAT, INT64, _branches
from tests.onnx_graphs import graph_model
from tests.relay_dynamic import RefusedError, run_dynamic
from tests.verify_relay import verify

Array = npt.NDArray[Any]


def _check(model: onnx.ModelProto, runs: Sequence[Mapping[str, Array]], refused: Sequence[Mapping[str, Array]]) -> Any:
    """Compare `runs` with ONNX Runtime, and check that `refused` inputs raise an error."""
    module, params = mlfc.import_model(model, dynamic=True)
    verify(module)
    session = InferenceSession(model.SerializeToString())
    for inputs in runs:
        for found, wanted in zip(run_dynamic(module, params, inputs), session.run(None, dict(inputs)), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    for inputs in refused:
        with pytest.raises((RefusedError, MlfcError)):
            run_dynamic(module, params, inputs)
    return module


def _ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def _dropping(perm: Sequence[int]) -> onnx.ModelProto:
    """Return a model that drops a dimension of size 1 and transposes the result, whose rank must match `perm`."""
    one = [helper.make_node("Squeeze", ["half", "axis"], ["r"])]
    other = [helper.make_node("Identity", ["half"], ["r"])]
    nodes = [
        helper.make_node("Slice", ["x", "zero", "end", "axis", "step"], ["half"]),
        helper.make_node("Shape", ["half"], ["extents"]), helper.make_node("Gather", ["extents", "axis"], ["extent"]),
        helper.make_node("Equal", ["extent", "axis"], ["is_one"]),
        helper.make_node("If", ["is_one"], ["dropped"], "which", **_branches(one, other)),
        helper.make_node("Transpose", ["dropped"], ["y"], perm=list(perm)),
    ]  # fmt: skip
    return graph_model(nodes, {"x": (FLOAT, ["n", "m", 3])}, {"y": (FLOAT, None)},
                        {"axis": np.asarray([1]), "step": np.asarray([2]), "zero": np.asarray([0]),
                         "end": np.asarray([np.iinfo(np.int64).max])})  # fmt: skip


@pytest.mark.parametrize(("perm", "good", "bad"), [((1, 0), 2, 3), ((2, 1, 0), 3, 2)], ids=["then", "else"])
def test_ifs_take_the_branch_that_fits_the_rest_and_runs_check_it(perm: Sequence[int], good: int, bad: int) -> None:
    model = _dropping(perm)
    _check(model, [{"x": _ones(4, good, 3)}], [{"x": _ones(4, bad, 3)}])
    if good == 2:
        compiled = mlfc.compile(model, "llvm")
        assert next(iter(compiled.run({"x": _ones(2, 1, 3)}).values())).shape == (3, 2)
        with pytest.raises(InputError, match="condition of 'which': expected 1, got 0"):
            compiled.run({"x": _ones(2, 3, 3)})


def test_no_branch_fits_and_many_are_not_tried_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MlfcError, match=r"depending on runtime values, is not supported"):
        mlfc.import_model(_dropping((3, 2, 1, 0)), dynamic=True)
    model = _dropping((3, 2, 1, 0))
    for index in range(12):
        node = onnx.NodeProto()
        node.CopyFrom(model.graph.node[4])
        node.name, node.output[0] = f"which_{index}", f"dropped_{index}"
        model.graph.node.insert(5, node)
        model.graph.output.append(helper.make_tensor_value_info(f"dropped_{index}", FLOAT, None))
    runs = []
    run = importer._Importer.run
    monkeypatch.setattr(importer._Importer, "run", lambda self, *args: runs.append(1) or run(self, *args))
    with pytest.raises(MlfcError):
        mlfc.import_model(model, dynamic=True)
    assert 13 < len(runs) < 40


def test_runs_take_dimensions_in_which_a_quotient_is_one_and_the_last_step_exists() -> None:
    pool = helper.make_node("AveragePool", ["x"], ["p"], kernel_shape=[3, 1], strides=[3, 1])
    # the reshape has to drop the height, so the element count requires a height of 3 to 5, which gives one window
    shape = [
        helper.make_node("Shape", ["x"], ["extents"]), helper.make_node("Gather", ["extents", "last"], ["width"]),
        helper.make_node("Concat", ["both", "width"], ["shape"], axis=0),
    ]  # fmt: skip
    rest = helper.make_node("Reshape", ["p", "shape"], ["y"])
    model = graph_model([pool, *shape, rest], {"x": (FLOAT, ["n", 2, "h", "w"])}, {"y": (FLOAT, None)},
                         {"both": np.asarray([0, 2]), "last": np.asarray([3])})  # fmt: skip
    rng = np.random.default_rng(1)
    runs = [{"x": rng.normal(size=(2, 2, h, 4)).astype(np.float32)} for h in (3, 5)]
    module = _check(model, runs, [{"x": _ones(2, 2, 6, 4)}, {"x": _ones(2, 2, 2, 4)}])
    height = module.main.params[0].type.shape[2].symbol
    assert (height.low, height.high) == (3, 5)
    conv = helper.make_node("Conv", ["x", "k"], ["c"])
    turned = helper.make_node("Transpose", ["c"], ["t"], perm=[2, 0, 1])
    gru = helper.make_node("GRU", ["t", "w", "r"], ["", "h"], hidden_size=2)
    weights = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in (("k", (2, 2, 4)), ("w", (1, 6, 2)), ("r", (1, 6, 2)))
    }
    model = graph_model([conv, turned, gru], {"x": (FLOAT, ["n", 2, "m"])}, {"h": (FLOAT, None)}, weights)
    runs = [{"x": rng.normal(size=(2, 2, m)).astype(np.float32)} for m in (4, 9)]
    _check(model, runs, [{"x": _ones(2, 2, 3)}])


def test_sides_are_as_large_as_windows_need_them() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], strides=[2, 1]),
        helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[3, 3], pads=[1, 0, 1, 0]),
    ]
    kernel = np.random.default_rng(2).normal(size=(2, 2, 3, 3)).astype(np.float32)
    model = graph_model(nodes, {"x": (FLOAT, ["n", 2, "h", "w"])}, {"y": (FLOAT, None)}, {"k": kernel})
    rng = np.random.default_rng(3)
    runs = [{"x": rng.normal(size=(2, 2, h, w)).astype(np.float32)} for h, w in ((3, 5), (7, 6), (3, 4))]
    module = _check(model, runs, [{"x": _ones(2, 2, 2, 5)}, {"x": _ones(2, 2, 3, 3)}])
    lows = [bounds(extent)[0] for extent in module.main.params[0].type.shape]
    assert lows == [0, 2, 3, 4]
    with pytest.raises(InputError, match=r"extent 'w' \(4 or more, the same wherever it is\) on axis 3, got 3"):
        mlfc.compile(model, "llvm").run({"x": _ones(2, 2, 3, 3)})


def test_a_squeeze_without_axes_drops_what_the_outputs_rank_says() -> None:
    node = helper.make_node("Squeeze", ["x"], ["y"])
    for rank, good, bad in ((1, (1, 1, 3), (2, 1, 3)), (3, (2, 4, 3), (1, 4, 3)), (None, (2, 4, 3), (2, 1, 3))):
        shape = None if rank is None else [f"e{axis}" for axis in range(rank)]
        model = graph_model([node], {"x": (FLOAT, ["n", "m", 3])}, {"y": (FLOAT, shape)})
        _check(model, [{"x": _ones(*good)}], [{"x": _ones(*bad)}])


def test_late_shapes_axes_and_counts_that_do_not_fit_are_refused() -> None:
    def given(**values: Any) -> dict[str, Array]:
        return {"x": _ones(2, 1, 6), **{name: np.asarray(value) for name, value in values.items()}}

    cases = [
        ("Reshape", 2, [[0, -1], [4, 3], [-1, 0], [12, -1]], [[5, 2], [-1, -1], [-2, 6], [-1, 5]]),
        ("Reshape", 4, [[0, 1, 0, -1]], [[2, 1, 6, 0]]),
        ("Squeeze", 1, [[1], [-2]], [[0], [2]]),
        ("Unsqueeze", 2, [[0, 4], [-1, 1]], [[1, 1], [0, -5]]),
        ("TopK", 1, [[1], [6], [0]], [[7]]),
    ]
    for operator, count, good, bad in cases:
        outputs = ["y", "places"] if operator == "TopK" else ["y"]
        node = helper.make_node(operator, ["x", "late"], outputs)
        model = graph_model([node], {"x": (FLOAT, ["n", "m", "k"]), "late": (INT64, [count])}, {"y": (FLOAT, None)})
        _check(model, [given(late=value) for value in good], [given(late=value) for value in bad])
    # the runtime shape must be the one that the model declares
    model = graph_model([helper.make_node("Reshape", ["x", "late"], ["y"])],
                          {"x": (FLOAT, [2, 1, 6]), "late": (INT64, [2])}, {"y": (FLOAT, [3, 4])})  # fmt: skip
    _check(model, [given(late=[3, 4]), given(late=[-1, 4])], [given(late=[4, 3])])
    compiled = mlfc.compile(model, "llvm")
    compiled.run(given(late=[3, 4]))
    with pytest.raises(InputError, match="gives the shape that the model declares: expected 1, got 0"):
        compiled.run(given(late=[4, 3]))


@pytest.mark.parametrize("policy", ["late scales", "late sizes", "not_larger", "not_smaller"])
def test_images_are_resized_by_what_the_run_says(policy: str) -> None:
    inputs: dict[str, Any] = {"x": (FLOAT, [1, 1, "h", "w"])}
    late, weights = {}, {}
    names, more = ["x", "", "", "sizes"], {}
    if policy == "late scales":
        inputs["scales"], names, late = (FLOAT, [4]), ["x", "", "scales"], {"scales": np.float32([1, 1, 1.5, 0.4])}
    elif policy == "late sizes":
        inputs["sizes"], late = (INT64, [4]), {"sizes": np.asarray([1, 1, 3, 9])}
    else:
        weights, more = {"sizes": np.asarray([7, 4])}, {"keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    rng = np.random.default_rng(7)
    runs = [{"x": rng.normal(size=(1, 1, *size)).astype(np.float32), **late} for size in ((3, 5), (8, 6))]
    for mode in ("linear", "nearest"):
        node = helper.make_node("Resize", names, ["y"], mode=mode, **more)
        refused = [{**runs[0], "scales": np.float32([1, 1, -1, 1])}] if policy == "late scales" else []
        _check(graph_model([node], inputs, {"y": (FLOAT, None)}, weights), runs, refused)
        if policy == "late scales":  # opset 10 rounds up where an axis shrinks
            model = graph_model(
                [helper.make_node("Resize", ["x", "scales"], ["y"], mode=mode)], inputs, {"y": (FLOAT, None)}
            )
            model.opset_import[0].version = 10
            _check(model, runs, refused)


def test_slices_without_repetitions_are_as_many_as_the_data_say() -> None:
    outputs = ["y", "first", "inverse", "counts"]
    rng = np.random.default_rng(3)
    for axis, is_sorted in ((0, 1), (1, 0), (-1, 1)):
        node = helper.make_node("Unique", ["x"], outputs, axis=axis, sorted=is_sorted)
        model = graph_model([node], {"x": (FLOAT, ["n", "m", 2])}, {name: (FLOAT if name == "y" else INT64, None)
                                                                     for name in outputs})  # fmt: skip
        runs = [{"x": rng.integers(0, 2, (*size, 2)).astype(np.float32)} for size in ((5, 1), (3, 4))]
        _check(model, runs, [])


def test_conditions_beyond_the_last_slice_are_ignored() -> None:
    inputs = {"x": (FLOAT, ["n", "m"]), "condition": (TensorProto.BOOL, ["k"])}
    model = graph_model([helper.make_node("Compress", ["x", "condition"], ["y"], axis=1)], inputs, {"y": (FLOAT, None)})
    sizes = ((3, 0, 3), (2, 5, 3), (2, 2, 4))
    runs = [{"x": _ones(n, m), "condition": np.arange(k) % 3 > 0} for n, m, k in sizes]
    _check(model, runs, [])


def test_slices_with_nan_differ_and_come_last() -> None:
    outputs = {"y": (FLOAT, None), "first": (INT64, None), "inverse": (INT64, None), "counts": (INT64, None)}
    model = graph_model([helper.make_node("Unique", ["x"], list(outputs), axis=0)], {"x": (FLOAT, ["n", 2])}, outputs)
    nan = np.nan
    x = np.array([[1, nan], [0, nan], [nan, 0], [0, nan], [nan, 1], [0, 2], [2, 0], [0, 2]], np.float32)
    module, params = mlfc.import_model(model, dynamic=True)
    wanted = ReferenceEvaluator(model).run(None, {"x": x})
    for found, part in zip(run_dynamic(module, params, {"x": x}), wanted, strict=True):
        np.testing.assert_array_equal(found, part)


@pytest.mark.parametrize("operator", ["Conv", "ConvInteger", "ConvTranspose", "QLinearConv"])
def test_windows_of_every_kind_of_convolution_must_fit_into_rows_that_data_decide(operator: str) -> None:
    codes, given = operator in ("ConvInteger", "QLinearConv"), ["x", "kernel"]
    if operator == "QLinearConv":
        given = ["x", "scale", "code", "kernel", "scale", "code", "scale", "code"]
    nodes = [
        helper.make_node("Slice", ["image", "zero", "rows", "two"], ["part"]),
        helper.make_node("Cast", ["part"], ["x"], to=onnx.TensorProto.INT8 if codes else FLOAT),
        helper.make_node(operator, given, ["c"], pads=[2] * 4 if operator == "ConvTranspose" else [0] * 4),
        helper.make_node("Cast", ["c"], ["y"], to=FLOAT),
    ]
    kernel = np.arange(36).reshape(2, 2, 3, 3).astype(np.int8 if codes else np.float32)
    constants = {"kernel": kernel, "zero": np.array([0]), "two": np.array([2]), "scale": np.float32(0.1),
                 "code": np.int8(0)}  # fmt: skip
    model = graph_model(nodes, {"image": (FLOAT, [1, 2, 8, 8]), "rows": (INT64, [1])}, {"y": (FLOAT, None)}, constants)
    image = np.arange(128).reshape(1, 2, 8, 8).astype(np.float32)
    compiled, session = mlfc.compile(model, "llvm"), InferenceSession(model.SerializeToString())
    for count in (3, 5):
        inputs = {"image": image, "rows": np.array([count])}
        np.testing.assert_allclose(compiled.run(inputs)["y"], session.run(None, inputs)[0], rtol=1e-5)
    for count in (0, 1, 2):
        with pytest.raises(InputError, match=r"extent of the result of .* expected 1 to"):
            compiled.run({"image": image, "rows": np.array([count])})


@pytest.mark.parametrize(
    ("shape", "target", "good", "bad"),
    [
        (["n", "m"], [-1, 2], [(2, 3), (3, 2), (0, 3)], (3, 3)),
        (["n", "h", "w"], [4, 2, -1], [(1, 8, 2), (2, 4, 1)], (1, 1, 1)),
        (["n", "m"], [3, 2], [(2, 3), (6, 1)], (3, 3)),
    ],
)
def test_a_product_of_dimensions_is_divided_by_a_reshape(
    shape: Sequence[str], target: Sequence[int], good: Sequence[Sequence[int]], bad: Sequence[int]
) -> None:
    node = helper.make_node("Reshape", ["x", "target"], ["y"])
    model = graph_model([node], {"x": (FLOAT, shape)}, {"y": (FLOAT, None)}, {"target": np.asarray(target)})
    _check(model, [{"x": _ones(*size)} for size in good], [{"x": _ones(*bad)}])


def test_last_states_and_edges_of_a_length_that_data_decide_require_elements() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("Cast", ["places"], ["p"], to=FLOAT),
        helper.make_node("Unsqueeze", ["p", "two"], ["row"]),
        helper.make_node("Transpose", ["row"], ["s"], perm=[1, 0, 2]),
        helper.make_node("RNN", ["s", "w", "r"], ["all", "last"], hidden_size=2),
        helper.make_node("Pad", ["p", "pads"], ["padded"], mode="edge"),
    ]  # fmt: skip
    constants = {"two": np.array([2]), "pads": np.array([0, 1, 0, 1]), "w": np.full((1, 2, 1), 0.5, np.float32),
                 "r": np.full((1, 2, 2), 0.25, np.float32)}  # fmt: skip
    outputs = dict.fromkeys(("all", "last", "padded"), (FLOAT, None))
    model = graph_model(nodes, {"x": (FLOAT, ["n"])}, outputs, constants)
    _check(model, [{"x": np.array([0, 1, 2], np.float32)}, {"x": _ones(1)}], [{"x": np.zeros(2, np.float32)}])


@pytest.mark.parametrize(
    ("operator", "value", "bad"),
    [
        ("Expand", [2, 3], [4, 3]), ("Tile", [2, 1], [2]), ("Reshape", [1, -1], [2, 3]), ("Unsqueeze", [0], [0, 1]),
        ("Pad", [1, 0, 0, 2], [1, 2]), ("CenterCropPad", [3, 2], [3]), ("ReduceMean", [-1], [1, -1]),
        ("ReduceMax", [1, 0], [2]), ("ReduceLogSumExp", [], [0, 0]),
    ],
)  # fmt: skip
def test_lists_of_dynamic_length_decide_shapes(operator: str, value: list[int], bad: list[int]) -> None:
    rank = 3 if operator == "Unsqueeze" else 2
    node = helper.make_node(operator, ["x", "s"], ["y"])
    model = graph_model([node], {"x": (FLOAT, ["n", "m"]), "s": (INT64, ["r"])}, {"y": (FLOAT, [None] * rank)})
    runs = [{"x": _ones(*shape), "s": np.array(value, np.int64)} for shape in ((1, 3), (2, 3))]
    _check(model, runs, [{"x": _ones(2, 3), "s": np.array(bad)}] if bad != [2, 3] else [])


@pytest.mark.parametrize(
    ("operator", "values", "kept", "refused"),
    [("Split", [2, 3], 5, (4, 6)), ("Split", [], 4, (3, 5)), ("Pad", [-2, -1], 3, (2,))],
)
def test_sizes_and_negative_pads_that_exceed_a_dimension_are_refused(
    operator: str, values: Sequence[int], kept: int, refused: Sequence[int]
) -> None:
    outputs = ["a", "b"] if operator == "Split" else ["a"]
    node = helper.make_node(operator, ["x", "values"][: 1 + bool(values)], outputs)
    model = graph_model(
        [node], {"x": (FLOAT, ["n"])}, dict.fromkeys(outputs, (FLOAT, None)), {"values": np.asarray(values)}
    )
    if not values:  # equal parts, until opset 18
        model.opset_import[0].version = 13
    compiled = mlfc.compile(model, "llvm")
    results = compiled.run({"x": np.ones(kept, np.float32)}).values()
    assert sum(array.size for array in results) == kept + (sum(values) if operator == "Pad" else 0)
    for count in refused:
        with pytest.raises(MlfcError, match=r"add up to dimension 0|equal parts|3 or more"):
            compiled.run({"x": np.ones(count, np.float32)})
