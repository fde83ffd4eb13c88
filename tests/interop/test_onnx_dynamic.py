"""ONNX models with dynamic shapes and control flow, compared with ONNX's reference and ONNX Runtime.

Modules are interpreted (`tests.relay_dynamic`); only expressions that are slow to interpret are compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

import mlfc
from mlfc.errors import MlfcError, UnsupportedError
from mlfc.support.dims import Symbol
from tests.node_tests import node_tests
from tests.onnx_graphs import CONTAINERS, graph_model
from tests.relay_dynamic import RefusedError, run_dynamic
from tests.verify_relay import verify

Array = npt.NDArray[Any]

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
# prefixes of the names of ONNX's node tests
TESTED = (
    "test_if", "test_loop1", "test_scan9", "test_nonzero", "test_unique", "test_compress",
    "test_nonmaxsuppression", "test_range", "test_reshape", "test_slice", "test_expand", "test_tile", "test_edge_pad",
    "test_reflect_pad", "test_constant_pad", "test_split_equal",
    "test_split_variable", "test_split_1d", "test_split_2d", "test_split_zero", "test_top_k", "test_onehot",
    "test_constantofshape", "test_squeeze", "test_unsqueeze", "test_shape", "test_size",
)  # fmt: skip


def _imported(model: onnx.ModelProto, **options: Any) -> Any:
    module, params = mlfc.import_model(model, dynamic=True, **options)
    verify(module)
    return lambda inputs: run_dynamic(module, params, inputs)


def _check(model: onnx.ModelProto, *runs: Mapping[str, Array], **options: Any) -> None:
    """Compare runs of one import with ONNX's reference."""
    ours = _imported(model, **options)
    has_graphs = any(item.HasField("g") for node in model.graph.node for item in node.attribute)
    # ONNX's evaluator does not concatenate scalars that iterations of a loop return
    reference: Any = InferenceSession(model.SerializeToString()) if has_graphs else ReferenceEvaluator(model)
    for inputs in runs:
        for found, wanted in zip(ours(inputs), reference.run(None, dict(inputs)), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("states", [True, False], ids=["stated", "open"])
def test_node_tests_pass_whether_their_shapes_are_stated_or_not(states: bool) -> None:
    cases = [case for case in node_tests() if case.name.startswith(TESTED)]
    count = 0
    for case in cases[::3] if states else cases:  # `test_onnx_nodes` covers those with declared shapes
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for item in () if states else model.graph.output:
            for size in item.type.tensor_type.shape.dim if item.type.HasField("tensor_type") else ():
                size.ClearField("dim_value")
        if "_expanded" in case.name or case.name.startswith(CONTAINERS):
            continue
        module, params = mlfc.import_model(model, dynamic=True)
        verify(module)
        for inputs, outputs in case.data_sets:
            names = [item.name for item in model.graph.input]
            found = run_dynamic(module, params, {name: np.asarray(x) for name, x in zip(names, inputs, strict=True)})
            for ours, wanted in zip(found, map(np.asarray, outputs), strict=True):
                assert ours.shape == wanted.shape, case.name
                np.testing.assert_allclose(ours, wanted, rtol=1e-5, err_msg=case.name)
        count += 1
    assert count > (30 if states else 90)


def test_open_dimensions_are_symbols_and_equal_ones_are_one() -> None:
    nodes = [
        helper.make_node("Add", ["x", "y"], ["sum"]),
        helper.make_node("Shape", ["sum"], ["shape"]),
        helper.make_node("ReduceProd", ["shape"], ["size"], keepdims=1),
        helper.make_node("Reshape", ["sum", "size"], ["flat"]),
    ]
    model = graph_model(nodes, {"x": (FLOAT, ["n", 3]), "y": (FLOAT, ["m", 3])}, {"flat": (FLOAT, [None])})
    module, _ = mlfc.import_model(model, dynamic=True)
    verify(module)
    first, second = (param.type.shape[0] for param in module.main.params)  # type: ignore[union-attr]  # tensors
    assert first == second
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 4, 3)).astype(np.float32)
    (found,) = run_dynamic(module, {}, {"x": x, "y": y})
    np.testing.assert_array_equal(found, (x + y).reshape(-1))
    with pytest.raises(RefusedError):
        run_dynamic(module, {}, {"x": x, "y": y[:2]})


def test_extents_that_are_equal_for_multiples_alone_have_to_be_multiples() -> None:
    half = {"kernel_shape": [1, 1], "strides": [2, 2]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], **half),
        helper.make_node("MaxPool", ["half"], ["quarter"], **half),
        helper.make_node("Resize", ["quarter", "", "scales"], ["twice"], mode="nearest"),
        helper.make_node("Concat", ["half", "twice"], ["y"], axis=1),
    ]
    model = graph_model(
        nodes, {"x": (FLOAT, [1, 1, "h", "w"])}, {"y": (FLOAT, None)}, {"scales": np.float32([1, 1, 2, 2])}
    )
    module, _ = mlfc.import_model(model, dynamic=True)
    verify(module)
    assert [str(extent) for extent in module.main.params[0].type.shape] == ["1", "1", "4 * h_by_4", "4 * w_by_4"]  # type: ignore[union-attr]  # a tensor
    x = np.random.default_rng(2).normal(size=(1, 1, 12, 8)).astype(np.float32)
    (wanted,) = InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(run_dynamic(module, {}, {"x": x})[0], wanted)
    with pytest.raises(RefusedError):
        run_dynamic(module, {}, {"x": x[:, :, :11]})
    runnable = mlfc.compile(model, "llvm")
    np.testing.assert_array_equal(next(iter(runnable.run({"x": x}).values())), wanted)
    with pytest.raises(MlfcError, match=r"x, axis 2, a multiple of 4.* 11"):
        runnable.run({"x": x[:, :, :11]})


def test_ranges_of_the_user_are_bounds_of_symbols() -> None:
    model = graph_model([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [None, 3])}, {"y": (FLOAT, [None, 3])})
    for given in (Symbol("batch", 2, 8), ("batch", 2, 8)):
        ours = _imported(model, shapes={"x": (given, 3)})
        assert ours({"x": np.ones((8, 3), np.float32)})[0].shape == (8, 3)
        with pytest.raises(RefusedError, match=r"not in 2\.\.8"):
            ours({"x": np.ones((9, 3), np.float32)})
    with pytest.raises(MlfcError, match=r"a range of dimension sizes.*9\.\.8"):
        mlfc.import_model(model, dynamic=True, shapes={"x": (("batch", 9, 8), 3)})
    with pytest.raises(MlfcError, match="dimension 1"):
        mlfc.import_model(model, dynamic=True, shapes={"x": (2, Symbol("k"))})


def _turn(op: str, *, rows: bool = True) -> onnx.GraphProto:
    """Return a loop body: a state that grows or is doubled, while its sum is below a limit from outside."""
    nodes = [
        helper.make_node("Concat", ["s", "x"], ["next"], axis=0)
        if op == "grow"
        else helper.make_node("Add", ["s", "x"], ["next"]),
        helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
        helper.make_node("Less", ["total", "limit"], ["go"]),
        helper.make_node("Identity", ["total"], ["row"]),
    ]
    outputs = [
        helper.make_tensor_value_info("go", BOOL, []),
        helper.make_tensor_value_info("next", FLOAT, None),
        *([helper.make_tensor_value_info("row", FLOAT, [])] if rows else []),
    ]
    inputs = [
        helper.make_tensor_value_info("i", INT64, []), helper.make_tensor_value_info("c", BOOL, []),
        helper.make_tensor_value_info("s", FLOAT, None),
    ]  # fmt: skip
    return helper.make_graph(nodes, "turn", inputs, outputs)


@pytest.mark.parametrize("op", ["grow", "add"])
def test_loops_turn_as_long_as_their_condition_holds(op: str) -> None:
    node = helper.make_node("Loop", ["most", "", "x"], ["last", "rows"], body=_turn(op))
    inputs = {"most": (INT64, []), "limit": (FLOAT, []), "x": (FLOAT, ["n", 2])}
    model = graph_model([node], inputs, {"last": (FLOAT, None), "rows": (FLOAT, None)})
    x = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    runs = [
        {"most": np.int64(most), "limit": np.float32(limit), "x": x[:size]}
        for most, limit, size in ((5, 1e9, 3), (50, 60, 2), (1, 0, 3), (1 << 60, 30, 1))
    ]
    _check(model, *[{name: np.asarray(value) for name, value in run.items()} for run in runs])


def test_few_turns_are_written_out_and_many_are_a_loop() -> None:
    def functions(count: int) -> int:
        node = helper.make_node("Loop", ["count", "", "x"], ["last", "rows"], body=_counting())
        model = graph_model([node], {"x": (FLOAT, [2])}, {"last": (FLOAT, None), "rows": (FLOAT, None)},
                             {"count": np.int64(count)})  # fmt: skip
        _check(model, {"x": np.asarray([1.0, 2.0], np.float32)}) if count < 100 else None
        return len(mlfc.import_model(model, dynamic=True)[0].functions)

    assert [functions(3), functions(60), functions(1 << 24)] == [1, 4, 4]
    with pytest.raises(UnsupportedError, match="exceeds what indices reach"):
        functions(1 << 60)


def _counting() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Identity", ["c"], ["go"]), helper.make_node("Sqrt", ["s"], ["next"]),
        helper.make_node("Neg", ["next"], ["row"]),
    ]  # fmt: skip
    kinds = {"i": (INT64, []), "c": (BOOL, []), "s": (FLOAT, [2])}, {
        "go": (BOOL, []), "next": (FLOAT, [2]), "row": (FLOAT, [2]),
    }  # fmt: skip
    infos = [[helper.make_tensor_value_info(name, *kind) for name, kind in items.items()] for items in kinds]
    return helper.make_graph(nodes, "turn", *infos)


def test_scans_over_an_open_extent_turn_as_often_as_it_has_elements() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["before", "now"], ["after"]), helper.make_node("Mul", ["after", "after"], ["row"])],
        "turn",
        [helper.make_tensor_value_info(name, FLOAT, [2]) for name in ("before", "now")],
        [helper.make_tensor_value_info(name, FLOAT, [2]) for name in ("after", "row")],
    )  # fmt: skip
    for more in ({}, {"scan_input_directions": [1], "scan_output_directions": [1], "scan_output_axes": [1]}):
        node = helper.make_node("Scan", ["s0", "x"], ["s", "y"], body=body, num_scan_inputs=1, **more)
        inputs = {"s0": (FLOAT, [2]), "x": (FLOAT, ["n", 2])}
        model = graph_model([node], inputs, {"s": (FLOAT, [2]), "y": (FLOAT, None)})
        rng = np.random.default_rng(3)
        ours = _imported(model)
        session = InferenceSession(model.SerializeToString())
        for size in (1, 5):
            given = {"s0": np.ones(2, np.float32), "x": rng.normal(size=(size, 2)).astype(np.float32)}
            for found, wanted in zip(ours(given), session.run(None, given), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-5)


def _branches(then: Sequence[onnx.NodeProto], other: Sequence[onnx.NodeProto]) -> dict[str, onnx.GraphProto]:
    output = helper.make_tensor_value_info("r", FLOAT, None)
    return {
        name: helper.make_graph(list(nodes), name, [], [output])
        for name, nodes in (("then_branch", then), ("else_branch", other))
    }


def test_branches_of_several_shapes_or_with_work_are_functions() -> None:
    doubled = [helper.make_node("Concat", ["x", "x"], ["r"], axis=0)]
    kept = [helper.make_node("Neg", ["x"], ["r"])]
    product = [helper.make_node("MatMul", ["x", "w"], ["r"])]
    inputs = {"c": (BOOL, []), "x": (FLOAT, ["n", 3])}
    rng = np.random.default_rng(2)
    weights = {"w": rng.normal(size=(3, 3)).astype(np.float32)}
    runs = [{"c": np.asarray(flag), "x": rng.normal(size=(2, 3)).astype(np.float32)} for flag in (True, False)]
    for then, other, functions in ((doubled, kept, 3), (product, kept, 3), (kept, kept, 1)):
        node = helper.make_node("If", ["c"], ["y"], **_branches(then, other))
        model = graph_model([node, helper.make_node("Shape", ["y"], ["shape"])], inputs,
                             {"y": (FLOAT, None), "shape": (INT64, [2])}, weights)  # fmt: skip
        _check(model, *runs)
        assert len(mlfc.import_model(model, dynamic=True)[0].functions) == functions


def test_counts_that_follow_from_data_are_extents() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["found"]),
        helper.make_node("Add", ["found", "found"], ["y"]),
        helper.make_node("Shape", ["y"], ["count"]),
    ]
    model = graph_model(nodes, {"x": (FLOAT, ["n", 3])}, {"y": (FLOAT, [None]), "count": (INT64, [1])})
    x = np.asarray([[0, 1, 2], [3, 0, 0]], np.float32)
    _check(model, {"x": x}, {"x": x[:1]}, {"x": 1 - np.ones((4, 3), np.float32)})


def test_boxes_of_a_detector_are_as_many_as_there_are() -> None:
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"]),
        helper.make_node("Gather", ["kept", "last"], ["index"], axis=1),
        helper.make_node("Squeeze", ["boxes", "zero"], ["flat"]),
        helper.make_node("Gather", ["flat", "index"], ["found"], axis=0),
    ]
    limits = {"overlap": np.asarray([0.5], np.float32), "least": np.asarray([0.3], np.float32)}
    weights = {**limits, "most": np.asarray([3]), "last": np.int64(2), "zero": np.asarray([0])}
    model = graph_model(nodes, {"boxes": (FLOAT, [1, "n", 4]), "scores": (FLOAT, [1, 2, "n"])},
                         {"found": (FLOAT, [None, 4])}, weights)  # fmt: skip
    rng = np.random.default_rng(5)
    runs = []
    for size in (6, 2):
        corner = rng.uniform(0, 4, (1, size, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(1, 3, (1, size, 2))], 2).astype(np.float32)
        runs.append({"boxes": boxes, "scores": rng.uniform(size=(1, 2, size)).astype(np.float32)})
    _check(model, *runs)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_images_of_open_sizes_are_resized(mode: str) -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)
    model = graph_model([node], {"x": (FLOAT, [1, 1, "h", "w"])}, {"y": (FLOAT, None)},
                         {"scales": np.asarray([1, 1, 2, 1.5], np.float32)})  # fmt: skip
    rng = np.random.default_rng(7)
    _check(model, *[{"x": rng.normal(size=(1, 1, *size)).astype(np.float32)} for size in ((3, 4), (5, 6))])


# Hostile models


def test_loops_nested_deeply_cost_little() -> None:
    def nested(depth: int) -> onnx.GraphProto:
        inner = [helper.make_node("Relu", [f"s{depth}"], [f"t{depth}"])]
        if depth:
            inner = [
                helper.make_node("Loop", ["most", "", f"s{depth}"], [f"t{depth}"], body=nested(depth - 1)),
            ]
        nodes = [helper.make_node("Identity", [f"c{depth}"], [f"go{depth}"]), *inner]
        kinds: Any = {f"i{depth}": (INT64, []), f"c{depth}": (BOOL, []), f"s{depth}": (FLOAT, ["n"])}, {
            f"go{depth}": (BOOL, []), f"t{depth}": (FLOAT, None),
        }  # fmt: skip
        infos = [[helper.make_tensor_value_info(name, *kind) for name, kind in items.items()] for items in kinds]
        return helper.make_graph(nodes, f"turn{depth}", *infos)

    def model(depth: int) -> onnx.ModelProto:
        node = helper.make_node("Loop", ["most", "", "x"], ["y"], body=nested(depth))
        return graph_model([node], {"x": (FLOAT, ["n"]), "most": (INT64, [])}, {"y": (FLOAT, None)})

    assert len(mlfc.import_model(model(12), dynamic=True)[0].functions) == 13 * 3 + 1


def test_extents_that_grow_without_end_are_left_to_the_run() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Mul", [f"s{i}", f"t{i}"], [f"s{i + 1}"]) for i in range(40)]
    nodes[1:1] = [helper.make_node("Add", [f"s{i}", f"a{i}"], [f"t{i}"]) for i in range(40)]
    weights = {f"a{i}": np.asarray([i + 1]) for i in range(40)}
    nodes += [helper.make_node("ConstantOfShape", ["s40"], ["y"])]
    model = graph_model(nodes, {"x": (FLOAT, ["n"])}, {"y": (FLOAT, None)}, weights)
    module, _ = mlfc.import_model(model, dynamic=True)
    (shape,) = module.main.body.type.fields[:1]  # type: ignore[union-attr]  # a tuple
    assert len(str(shape)) < 1_000


def test_thousands_of_open_dimensions_cost_little() -> None:
    count = 2_000
    inputs = {f"x{i}": (FLOAT, [None, None]) for i in range(count)}
    nodes = [helper.make_node("Relu", ["x0"], ["y"])]
    module, _ = mlfc.import_model(graph_model(nodes, inputs, {"y": (FLOAT, None)}), dynamic=True)
    assert len({str(extent) for param in module.main.params for extent in param.type.shape}) == 2 * count  # type: ignore[union-attr]


def test_contradictions_of_open_dimensions_are_one_error() -> None:
    nodes = [
        helper.make_node("Add", ["x", "three"], ["a"]),
        helper.make_node("Add", ["x", "four"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=0),
    ]
    weights = {"three": np.zeros(3, np.float32), "four": np.zeros(4, np.float32)}
    model = graph_model(nodes, {"x": (FLOAT, ["n"])}, {"y": (FLOAT, None)}, weights)
    with pytest.raises(MlfcError, match=r"do not broadcast|differ"):
        mlfc.import_model(model, dynamic=True)


MACHINE_TESTS = (
    "test_if", "test_loop13_none", "test_loop16", "test_range_float_type_positive_delta_expanded", "test_scan9_sum",
    "test_nonzero_example", "test_compress_0", "test_unique_not_sorted_without_axis",
    "test_nonmaxsuppression_suppress_by_IOU", "test_nonmaxsuppression_two_classes", "test_range_int32",
    "test_reshape_reordered_last_dims", "test_slice_neg_steps", "test_expand_dim_changed", "test_tile",
    "test_top_k_smallest", "test_onehot_with_axis", "test_split_variable_parts_1d_opset18",
)  # fmt: skip


def test_the_virtual_machine_passes_node_tests_without_stated_shapes() -> None:
    cases = [case for case in node_tests() if case.name.startswith(MACHINE_TESTS)]
    count = 0
    for case in cases:
        if case.name.startswith(CONTAINERS):
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for item in model.graph.output:
            item.type.tensor_type.ClearField("shape")
        compiled = mlfc.compile(model, "llvm")
        inputs, outputs = case.data_sets[0]
        given = dict(zip([item.name for item in model.graph.input], inputs, strict=True))
        found = compiled.run({info.name: given[info.name] for info in compiled.inputs}).values()
        for ours, wanted in zip(found, map(np.asarray, outputs), strict=True):
            assert ours.shape == wanted.shape, case.name
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, err_msg=case.name)
        count += 1
    assert count >= 15


OPENED = (
    "test_attention_4d_causal", "test_attention_4d_attn_mask", "test_attention_3d_with_past_and_present",
    "test_attention_4d_causal_with_past_and_present", "test_attention_4d_with_qk_matmul_bias",
    "test_nonmaxsuppression_two_batches", "test_roialign_aligned_true", "test_einsum_batch_matmul",
    "test_einsum_batch_diagonal", "test_swiglu", "test_spacetodepth", "test_hardmax_axis_1",
    "test_dropout_default_mask", "test_lstm_bidirectional", "test_sce_mean_weight", "test_momentum",
)  # fmt: skip


def test_extents_that_must_agree_are_made_to_where_all_are_open() -> None:
    cases = {case.name: case for case in node_tests()}
    heads = {3: (0, 1), 4: (0, 2)}  # dynamic axes of attention; the numbers of heads must be static
    for name in OPENED:
        case = cases[name]
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for item in (*model.graph.input, *model.graph.output):
            kind = item.type.tensor_type
            for axis, size in enumerate(kind.shape.dim):
                is_open = kind.elem_type == FLOAT and size.dim_value > 1
                if is_open and ("attention" not in name or axis in heads.get(len(kind.shape.dim), ())):
                    size.ClearField("dim_value")
        compiled = mlfc.compile(model, "llvm", executor="vm")
        given = dict(zip([item.name for item in model.graph.input], case.data_sets[0][0], strict=True))
        found = compiled.run({info.name: np.asarray(given[info.name]) for info in compiled.inputs})
        for ours, wanted in zip(found.values(), map(np.asarray, case.data_sets[0][1]), strict=True):
            assert ours.shape == wanted.shape, name
            np.testing.assert_allclose(ours, wanted, rtol=case.rtol, atol=1e-6, err_msg=name)


def test_scales_and_zero_points_by_channel_fix_the_extent_of_their_axis() -> None:
    codes, weights = (np.arange(-9, 9, dtype=np.int8).reshape(shape) for shape in ((2, 3, 3), (3, 6)))
    constants = {"s": np.array([0.1, 0.2, 0.3], np.float32), "z": np.array([1, 2, -3], np.int8),
                 "zeros": np.arange(6, dtype=np.int8)}  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["real"], axis=1),
        helper.make_node("QuantizeLinear", ["real", "s", "z"], ["y"], axis=-2),
        helper.make_node("MatMulInteger", ["x", "w", "", "zeros"], ["product"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.INT8, ["a", "b", "c"]),
         helper.make_tensor_value_info("w", TensorProto.INT8, ["c", "d"])],
        [onnx.ValueInfoProto(name=name) for name in ("real", "y", "product")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module, params = mlfc.import_model(model, dynamic=True)
    real, again, product = run_dynamic(module, params, {"x": codes, "w": weights})
    scale, zero = (constants[name].reshape(1, 3, 1) for name in "sz")
    np.testing.assert_allclose(real, (codes.astype(np.float32) - zero) * scale, rtol=1e-6)
    np.testing.assert_array_equal(again, codes)
    wanted = codes.astype(np.int32) @ (weights.astype(np.int32) - constants["zeros"])
    np.testing.assert_array_equal(product, wanted)


def test_a_refusal_says_what_fixed_shapes_would_not_mend() -> None:
    """Omit the advice to declare static shapes for sequences, which have none."""
    nodes = [helper.make_node("SequenceAt", ["s", "i"], ["x"]), helper.make_node("Antialias", ["x"], ["y"])]
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, ["n"])
    model = graph_model(nodes, {"i": (INT64, [])}, {"y": (FLOAT, None)})
    model.graph.input.append(sequence)
    with pytest.raises(MlfcError, match="operator 'Antialias'") as caught:
        mlfc.compile(model, "llvm")
    assert "type sequence" not in str(caught.value)


def test_states_that_no_iteration_changes_are_constants_of_the_loop() -> None:
    """Pass weights as loop states, as exporters of recurrent layers do, one of them through an Identity."""
    node, value, square = helper.make_node, helper.make_tensor_value_info, [3, 3]
    states = [value(name, FLOAT, square) for name in ("h", "w_in", "v_in", "h2", "v_out", "row")]
    body = helper.make_graph(
        [node("MatMul", ["h", "w_in"], ["hw"]), node("MatMul", ["hw", "v_in"], ["hv"]), node("Tanh", ["hv"], ["h2"]),
         node("Neg", ["h2"], ["row"]), *(node("Identity", [f"{name}_in"], [f"{name}_out"]) for name in "vw"),
         node("Identity", ["go"], ["go2"])], "body",
        [value("n", INT64, []), value("go", BOOL, []), *states[:3]],
        [value("go2", BOOL, []), states[3], value("w_out", FLOAT, square), states[4], states[5]],
    )  # fmt: skip
    weights = {name: np.random.default_rng(2).standard_normal(square).astype(np.float32) for name in ("w", "v")}
    model = graph_model(
        [node("Loop", ["count", "", "x", "w", "v"], ["y", "w_last", "v_last", "rows"], body=body)],
        {"count": (INT64, []), "x": (FLOAT, square)},
        dict.fromkeys(("y", "w_last", "v_last", "rows"), (FLOAT, None)), weights,
    )  # fmt: skip
    _check(model, *({"count": np.asarray(count, np.int64), "x": np.eye(3, dtype=np.float32)} for count in (1, 40)))
    functions = mlfc.import_model(model, dynamic=True)[0].functions
    turn = next(function for name, function in functions.items() if name.endswith("turn"))
    assert sum(str(param.type) == "Tensor[(3, 3), float32]" for param in turn.params) == 1


RANGES = [("zero", "one"), ("zero", "half"), ("zero", "more"), ("more", "one"), ("more", "half")]


def test_ranges_between_fractions_and_dimension_sizes() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Squeeze", ["shape"], ["size"]),
        helper.make_node("Cast", ["size"], ["end"], to=FLOAT),
        *(helper.make_node("Range", [start, "end", step], [start + step]) for start, step in RANGES),
    ]
    outputs = {start + step: (FLOAT, [None]) for start, step in RANGES}
    numbers = {"zero": np.float32(0), "more": np.float32(1.5), "one": np.float32(1), "half": np.float32(0.5)}
    _check(
        graph_model(nodes, {"x": (FLOAT, ["n"])}, outputs, numbers), *({"x": np.ones(n, np.float32)} for n in (1, 4))
    )


def test_lists_of_a_dynamic_length_that_a_declared_shape_determines() -> None:
    nodes = [
        helper.make_node("Compress", ["numbers", "c"], ["list"]),
        helper.make_node("Reshape", ["x", "list"], ["y"]),
        helper.make_node("Sub", ["list", "numbers_of_y"], ["axes"]),
        helper.make_node("Unsqueeze", ["y", "axes"], ["z"]),
        helper.make_node("Squeeze", ["z", "axes"], ["w"]),
    ]
    inputs = {"x": (FLOAT, [12]), "c": (BOOL, [3])}
    outputs = {"y": (FLOAT, [2, 6]), "z": (FLOAT, [1, 2, 1, 6]), "w": (FLOAT, [2, 6])}
    constants = {"numbers": np.int64([2, 6, 1]), "numbers_of_y": np.int64([2, 4])}
    model = graph_model(nodes, inputs, outputs, constants)
    x = np.arange(12, dtype=np.float32)
    _check(model, {"x": x, "c": np.array([True, True, False])})
    with pytest.raises(RefusedError):
        _imported(model)({"x": x, "c": np.array([True, True, True])})
