"""Nodes that are easy to import wrongly, and messages about rejected ones."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.errors import MlfcError, ModelError, OptionError, ProblemsError, UnsupportedError
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant
from mlfc.relay.visitor import post_order
from tests.onnx_models import model, single, small_network
from tests.relay_run import run_main
from tests.verify_relay import verify


def imported(data: Any, **options: Any) -> ir.Expr:
    """Return the body of the imported model."""
    data = data if isinstance(data, bytes) else data.SerializeToString()
    return mlfc.import_model(data, **options)[0].main.body


def calls(body: ir.Expr) -> list[str]:
    """Return the names of the operators in order."""
    return [ir.op_name(node) for node in post_order(body) if ir.op_name(node)]


def one_call(body: ir.Expr, name: str) -> Call:
    """Return the only call of an operator."""
    (found,) = [node for node in post_order(body) if ir.op_name(node) == name]
    return found


def test_weights_become_parameters_under_their_own_names() -> None:
    network = small_network()
    module, params = mlfc.import_model(network.SerializeToString(), name="net")
    assert sorted(params) == ["b", "dense", "w"]
    assert [param.name for param in module.main.params] == ["x", "w", "b", "dense"]
    assert params["b"].shape == (4,)
    assert module.output_names == ("y",)
    assert module.source["format"] == "onnx"
    assert module.source["name"] == "net"
    assert calls(module.main.body) == [
        "nn.conv2d", "nn.bias_add", "nn.relu", "nn.max_pool2d", "reshape", "transpose", "nn.dense", "nn.softmax",
    ]  # fmt: skip


def test_spans_name_nodes_and_the_tensor_of_each_last_expression() -> None:
    spans = {ir.op_name(node): node.span for node in post_order(imported(small_network())) if ir.op_name(node)}
    assert spans["nn.conv2d"] == ir.Span(("first",), None)
    assert spans["nn.bias_add"] == ir.Span(("first",), "conv")
    assert spans["nn.relu"] == ir.Span(("Relu #1",), "relu")
    assert spans["transpose"].tensor is None
    assert spans["nn.dense"].tensor == "product"


def test_softmax_before_opset_13_flattens() -> None:
    old = imported(single("Softmax", (2, 3, 4), opset=11))
    assert calls(old) == ["reshape", "nn.softmax", "reshape"]
    assert one_call(old, "nn.softmax").type.shape == (2, 12)
    new = imported(single("Softmax", (2, 3, 4), opset=13))
    assert calls(new) == ["nn.softmax"]
    assert one_call(new, "nn.softmax").attrs["axis"] == 2
    last = imported(single("Softmax", (2, 3), opset=7))
    assert calls(last) == ["nn.softmax"]


@pytest.mark.parametrize(
    ("auto_pad", "expected"),
    [("SAME_UPPER", (0, 1, 1, 1)), ("SAME_LOWER", (1, 1, 0, 1)), ("VALID", (0, 0, 0, 0))],
)
def test_auto_pad_is_made_explicit(auto_pad: str, expected: tuple[int, ...]) -> None:
    weight = np.zeros((1, 1, 3, 3), np.float32)
    body = imported(single("Conv", (1, 1, 6, 5), inputs=[weight], auto_pad=auto_pad, strides=[2, 2]))
    assert one_call(body, "nn.conv2d").attrs["padding"] == expected


def test_ceil_mode_becomes_padding_at_the_end() -> None:
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    body = imported(single("MaxPool", (1, 1, 6, 7), **pool))
    call = one_call(body, "nn.max_pool2d")
    assert call.attrs["padding"] == (0, 0, 1, 0)
    assert call.attrs["ceil_mode"] is False
    assert body.type.shape == (1, 1, 3, 3)


def test_a_window_that_would_start_in_the_end_padding_is_dropped() -> None:
    body = imported(single("MaxPool", (1, 1, 2, 2), kernel_shape=[1, 1], strides=[3, 3], ceil_mode=1, opset=22))
    assert body.type.shape == (1, 1, 1, 1)


def test_counted_padding_with_ceil_mode_is_padded_first() -> None:
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1, "pads": [1, 1, 1, 1]}
    body = imported(single("AveragePool", (1, 1, 4, 4), opset=19, **pool))
    assert calls(body)[0] == "nn.pad"
    assert one_call(body, "nn.avg_pool2d").attrs["count_include_pad"] is False


def test_one_spatial_dimension_is_computed_as_two() -> None:
    weight = np.zeros((4, 2, 3), np.float32)
    body = imported(single("Conv", (1, 2, 10), inputs=[weight], pads=[2, 0], strides=[2], dilations=[2]))
    call = one_call(body, "nn.conv2d")
    assert call.attrs["padding"] == (0, 2, 0, 0)
    assert call.attrs["dilation"] == (1, 2)
    assert body.type.shape == (1, 4, 4)


def test_shape_arithmetic_folds() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "axes"], ["batch_1d"]),
        helper.make_node("Concat", ["batch_1d", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    body = imported(model(nodes, {"x": (2, 3, 4)}, ["y"], weights))
    assert calls(body) == ["reshape"]
    assert body.type.shape == (2, 12)


def test_open_dimensions_are_asked_for_all_at_once() -> None:
    node = helper.make_node("Add", ["a", "b"], ["y"])
    network = model([node], {"a": ("N", 3), "b": ("N", "M")}, ["y"]).SerializeToString()
    with pytest.raises(ModelError, match=r"'a' \(N, 3\), 'b' \(N, M\)") as found:
        mlfc.import_model(network)
    assert "--shape a=1,3 --shape b=1,1" in str(found.value)
    # N is determined by a; M is not
    with pytest.raises(ModelError, match="1 input has"):
        mlfc.import_model(network, shapes={"a": (2, 3)})
    module, _ = mlfc.import_model(network, shapes={"b": (2, 3)})
    assert module.main.params[0].type.shape == (2, 3)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1,)}, "unknown input 'z'"),
        ({"x": (1, 2)}, "has 3 dimensions"),
        ({"x": (5, 3, 4)}, "dimension 0 of the input 'x' is 2"),
        ({"x": (2, 3, -4)}, "positive integers"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        mlfc.import_model(single("Relu", (2, 3, 4)), shapes=shapes)


def test_every_unsupported_node_is_named_at_once() -> None:
    nodes = [
        helper.make_node("MaxRoiPool", ["x", "x"], ["a"], name="select"),
        helper.make_node("Foo", ["a"], ["b"], domain="my.domain"),
        helper.make_node("MaxPool", ["x"], ["c"], kernel_shape=[2] * 4, name="pool"),
        helper.make_node("Relu", ["b"], ["d"]),
        helper.make_node("Add", ["d", "c"], ["y"]),
    ]
    network = model(nodes, {"x": (1, 1, 4, 4, 4, 4)}, ["y"], domains=[helper.make_opsetid("my.domain", 3)])
    problems = mlfc.check(network.SerializeToString())
    assert [problem.place for problem in problems] == ["node 'select'", "node 'Foo #1'", "node 'pool'"]
    assert all(isinstance(problem, UnsupportedError) for problem in problems)
    assert "my.domain.Foo' (opset 3)" in str(problems[1])
    assert all(problem.next_step for problem in problems)
    with pytest.raises(ProblemsError, match="3 problems found"):
        mlfc.import_model(network.SerializeToString())


def test_an_attribute_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ModelError, match=r"opset \d+ does not define the attribute 'strange'"):
        mlfc.import_model(single("Relu", (2,), strange=3))
    with pytest.raises(ModelError, match="'noop_with_empty_axes'"):
        mlfc.import_model(single("ReduceMax", (2,), noop_with_empty_axes=1))


def test_a_dtype_that_no_opset_allows_is_refused() -> None:
    node = helper.make_node("HardSigmoid", ["x"], ["y"], name="n")
    data = model([node], {"x": (2,)}, ["y"], dtype=TensorProto.UINT64)
    with pytest.raises(ModelError, match="'X' has the dtype uint64; expected bfloat16 or float16 or float32"):
        mlfc.import_model(data)


def test_only_one_is_a_true_flag() -> None:
    body = imported(single("ReduceMax", (2, 3), opset=13, axes=[1], keepdims=-3))
    assert ir.tensor_type(body).shape == (2,)
    pool = single("MaxPool", (1, 1, 5, 5), opset=12, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=2)
    assert ir.tensor_type(imported(pool)).shape == (1, 1, 2, 2)
    scores = imported(single("Attention", (1, 2, 3, 4), opset=23, inputs=[np.ones((1, 2, 3, 4), np.float32)] * 2,
                             is_causal=-1))  # fmt: skip
    assert one_call(scores, "nn.attention").attrs["right"] == -1


def test_names_inside_of_graphs_are_their_own() -> None:
    """Allow values of branches and bodies with names that the enclosing graph defines later."""
    x = np.array([1.0, -2.0], np.float32)
    kinds = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "stop": TensorProto.BOOL}

    def graph(nodes: list[Any], inputs: str, outputs: str) -> Any:
        items = [[helper.make_tensor_value_info(name, kinds.get(name, 1), None) for name in part.split()]
                 for part in (inputs, outputs)]  # fmt: skip
        return helper.make_graph(nodes, "inner", *items)

    node = helper.make_node
    then = graph([node("Neg", ["x"], ["later"]), node("Abs", ["later"], ["t"])], "", "t")
    other = graph([node("Relu", ["x"], ["b"])], "", "b")
    turn = graph([node("Add", ["state", "x"], ["y"]), node("Identity", ["go"], ["stop"])], "i go state", "stop y")
    source = model(
        [
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Cast", ["sum"], ["flag"], to=TensorProto.BOOL),
            node("If", ["flag"], ["b"], then_branch=then, else_branch=other),
            node("Exp", ["b"], ["later"]),
            node("Loop", ["count", "", "later"], ["y"], body=turn),
        ],
        {"x": (2,)}, ["y"], {"count": np.array(3)},
    )  # fmt: skip
    module, params = mlfc.import_model(source)  # static: the loop is unrolled
    np.testing.assert_allclose(run_main(module, {**params, "x": x})[0], np.exp(np.abs(x)) + 3 * x, rtol=1e-6)


def test_nodes_that_no_output_needs_do_not_matter() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Unique", ["x"], ["z"])]
    assert calls(imported(model(nodes, {"x": (2,)}, ["y"]))) == ["nn.relu"]


def test_nodes_in_any_order() -> None:
    nodes = [helper.make_node("Abs", ["a"], ["y"]), helper.make_node("Relu", ["x"], ["a"])]
    assert calls(imported(model(nodes, {"x": (2,)}, ["y"]))) == ["nn.relu", "abs"]


def choice(then: Any, other: Any, condition: Any = None, dtype: str = "bool") -> Any:
    """Return a model of an If with a node in each branch; the condition is an input by default."""
    branches = {
        f"{name}_branch": helper.make_graph([node], name, [], [helper.make_tensor_value_info("r", 1, None)])
        for name, node in (("then", then), ("else", other))
    }
    node = helper.make_node("If", ["c"], ["y"], name="choice", **branches)
    inputs = [helper.make_tensor_value_info("x", 1, [2, 3])]
    if condition is None:
        inputs.append(helper.make_tensor_value_info("c", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [1]))
    constants = [] if condition is None else [numpy_helper.from_array(np.array(condition), "c")]
    result = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph([node], "g", inputs, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


RELU, ABS = (helper.make_node(name, ["x"], ["r"]) for name in ("Relu", "Abs"))


def test_the_branch_of_a_known_condition_is_taken() -> None:
    for condition, expected in ((True, "nn.relu"), (False, "abs")):
        assert calls(imported(choice(RELU, ABS, condition))) == [expected]


def test_both_branches_of_a_condition_that_comes_late_are_computed() -> None:
    module, _ = mlfc.import_model(choice(RELU, ABS).SerializeToString())
    assert calls(module.main.body) == ["reshape", "nn.relu", "abs", "where"]
    x = np.random.default_rng(3).standard_normal((2, 3)).astype(np.float32)
    for condition, expected in ((True, np.maximum(x, 0)), (False, np.abs(x))):
        (found,) = run_main(module, {"x": x, "c": np.array([condition])})
        np.testing.assert_array_equal(found, expected)


def test_branches_that_cannot_both_be_computed_say_what_decides_between_them() -> None:
    total = helper.make_node("ReduceSum", ["x"], ["r"], keepdims=0)
    with pytest.raises(UnsupportedError, match=r"cannot return Tensor.* or float32.*--value c=true"):
        imported(choice(RELU, total))
    loop = helper.make_node("Foo", ["x"], ["r"], name="foo")
    problems = mlfc.check(choice(RELU, loop).SerializeToString())
    assert [problem.place for problem in problems] == ["node 'choice/else_branch/foo'", "node 'choice'"]
    assert problems[1].next_step == "Specify its value at compile time: for example --value c=true"
    assert mlfc.check(choice(RELU, loop).SerializeToString(), values={"c": np.array([True])}) == []
    with pytest.raises(ModelError, match="the condition of If is one bool"):
        imported(choice(RELU, ABS, dtype="float32"))


def function_model(body: list[Any], **attributes: Any) -> Any:
    """Return a model that calls the function `Scaled`, which consists of `body`, twice."""
    function = helper.make_function(
        "my.domain", "Scaled", ["a"], ["r"], body, [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)],
        attributes=["alpha"],
    )  # fmt: skip
    nodes = [
        helper.make_node("Scaled", ["x"], ["t"], name="one", domain="my.domain", **attributes),
        helper.make_node("Scaled", ["t"], ["y"], name="two", domain="my.domain", **attributes),
    ]
    domains = [helper.make_opsetid("my.domain", 1)]
    return model(nodes, {"x": (2,)}, ["y"], domains=domains, functions=[function])


def test_functions_of_the_model_are_inlined() -> None:
    inner = helper.make_node("LeakyRelu", ["a"], ["r"], name="inner")
    reference = inner.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "alpha", 1
    body = imported(function_model([inner], alpha=0.5))
    assert calls(body) == ["nn.leaky_relu"] * 2
    assert body.attrs["alpha"] == 0.5
    assert body.span == ir.Span(("two/inner",), "y")


def test_a_function_that_calls_itself_is_refused() -> None:
    inner = helper.make_node("Scaled", ["a"], ["r"], domain="my.domain")
    with pytest.raises(ModelError, match="call themselves"):
        imported(function_model([inner]))


def test_real_factors_of_integers_are_not_truncated() -> None:
    a, c = np.array([[1, 2], [3, 5]], np.int64), np.array([3, -3], np.int64)
    node = helper.make_node("Gemm", ["x", "x", "c"], ["y"], alpha=0.5, beta=1.5)
    module, params = mlfc.import_model(model([node], {"x": (2, 2)}, ["y"], {"c": c}, dtype=TensorProto.INT64))
    expected = np.trunc(0.5 * (a @ a) + 1.5 * c).astype(np.int64)
    np.testing.assert_array_equal(run_main(module, {**params, "x": a})[0], expected)


def test_gemm_bias_and_transposition() -> None:
    weight, bias = np.zeros((4, 3), np.float32), np.zeros(3, np.float32)
    body = imported(single("Gemm", (2, 4), inputs=[weight, bias]))
    assert calls(body) == ["transpose", "nn.dense", "nn.bias_add"]
    body = imported(single("Gemm", (2, 4), inputs=[weight.T, bias[:, None][:1]], transB=1, alpha=2.0, beta=0.5))
    assert calls(body) == ["nn.dense", "multiply", "multiply", "add"]


def test_matmul_by_one_matrix_keeps_leading_dimensions() -> None:
    body = imported(single("MatMul", (2, 5, 4), inputs=[np.zeros((4, 3), np.float32)]))
    assert body.type.shape == (2, 5, 3)
    assert "nn.batch_matmul" not in calls(body)


def test_quantized_forms_stay_recognizable() -> None:
    scale, zero = np.float32(0.5), np.int8(3)
    weights = {"s": np.array(scale), "z": np.array(zero), "w": np.ones((3, 4), np.int8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["dw"]),
        helper.make_node("MatMul", ["d", "dw"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["y"]),
    ]
    module, params = mlfc.import_model(model(nodes, {"x": (2, 3)}, ["y"], weights).SerializeToString())
    assert calls(module.main.body) == [
        "qnn.quantize", "qnn.dequantize", "qnn.dequantize", "nn.dense", "qnn.quantize",
    ]  # fmt: skip
    assert module.main.body.attrs["rounding"] == "TONEVEN"
    assert params["w"].shape == (4, 3)
    assert module.quantization == {"y": ir.Quantization(0.5, 3)}


def test_qlinear_conv_requantizes_with_ties_to_even() -> None:
    per_channel = np.array([0.1, 0.2], np.float32)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    weights = {
        "xs": np.array(0.5, np.float32), "xz": np.array(128, np.uint8), "w": np.ones((2, 1, 3, 3), np.int8),
        "ws": per_channel, "wz": np.zeros(2, np.int8), "ys": np.array(0.25, np.float32),
        "yz": np.array(7, np.uint8), "b": np.ones(2, np.int32),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", names, ["y"])
    data = model([node], {"x": (1, 1, 5, 5)}, ["y"], weights, dtype=TensorProto.UINT8).SerializeToString()
    module, _ = mlfc.import_model(data)
    assert calls(module.main.body) == ["qnn.conv2d", "nn.bias_add", "qnn.requantize"]
    body = module.main.body
    assert body.attrs["rounding"] == "TONEVEN"
    assert body.attrs["out_dtype"] == "uint8"
    unit = body.args[1]
    assert isinstance(unit, Constant)
    np.testing.assert_array_equal(unit.data, np.float32(0.5) * per_channel)
    assert module.quantization == {"x": ir.Quantization(0.5, 128), "y": ir.Quantization(0.25, 7)}


def test_resize_uses_the_image_operator_where_it_means_the_same() -> None:
    empty = np.zeros(0, np.float32)
    same = imported(single("Resize", (1, 1, 2, 2), inputs=[empty, np.array([1, 1, 2, 2], np.float32)], mode="linear"))
    assert calls(same) == ["image.resize2d"]
    rounded = imported(single("Resize", (1, 1, 3, 3), inputs=[empty, np.array([1, 1, 1.5, 1.5], np.float32)]))
    assert "image.resize2d" not in calls(rounded)
    assert rounded.type.shape == (1, 1, 4, 4)


@pytest.mark.parametrize("opset", [0, 29])
def test_opsets_beyond_the_known_are_refused(opset: int) -> None:
    with pytest.raises(UnsupportedError, match="only 1 to 28"):
        imported(single("Relu", (2,), opset=opset))


def test_a_deep_graph_does_not_exhaust_the_stack() -> None:
    names = ["x", *(f"t{index}" for index in range(3000))]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    assert len(calls(imported(model(nodes, {"x": (2,)}, names[-1:])))) == 3000


def test_an_output_listed_twice_gets_two_names() -> None:
    data = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (2,)}, ["y", "y"]).SerializeToString()
    module, _ = mlfc.import_model(data)
    assert module.output_names == ("y", "y_1")
    verify(module)


def test_check_returns_what_import_raises() -> None:
    assert mlfc.check(small_network().SerializeToString()) == []
    (problem,) = mlfc.check(b"not a model at all")
    assert isinstance(problem, MlfcError)


def test_anonymous_dimensions_are_independent() -> None:
    """Treat each ``?`` as a separate dimension: exporters write it for every dynamic dimension."""
    data = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("?", 3, "?", "?")}, ["y"]).SerializeToString()
    module, _ = mlfc.import_model(data, shapes={"x": (1, 3, 48, 320)})
    assert str(module.main.body.type) == "Tensor[(1, 3, 48, 320), float32]"
    named = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("n", "n")}, ["y"]).SerializeToString()
    with pytest.raises(MlfcError, match="dimension 1"):
        mlfc.import_model(named, shapes={"x": (1, 2)})


@pytest.mark.parametrize(
    ("operators", "shape", "suggested"),
    [
        ([("Relu", {})], ("?", 3, "?", "?"), "1,3,224,224"),
        # only an image of 640 columns has 6400 windows
        (
            [("MaxPool", {"kernel_shape": [8, 8], "strides": [8, 8]}), ("Reshape", {})],
            ("N", 3, "H", "W"),
            "1,3,640,640",
        ),
        ([("Relu", {})], ("batch", "sequence"), "1,128"),
        ([("Relu", {})], ("samples",), "128"),
    ],
)
def test_the_suggested_shape_compiles(
    operators: Any, shape: Any, suggested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfc.frontend.leaves_to_run", lambda *_: False)
    nodes = []
    for i, (operator, attributes) in enumerate(operators):
        operands = [f"t{i}" if i else "x", *(["shape"] if operator == "Reshape" else [])]
        nodes.append(helper.make_node(operator, operands, [f"t{i + 1}"], **attributes))
    data = model(nodes, {"x": shape}, [f"t{len(operators)}"], {"shape": np.array([1, 3, 6400])}).SerializeToString()
    (problem,) = mlfc.check(data)
    assert problem.next_step == f"Give them, for example: --shape x={suggested}"
    assert mlfc.check(data, shapes={"x": tuple(map(int, suggested.split(",")))}) == []


def test_no_shape_is_suggested_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfc.frontend.leaves_to_run", lambda *_: False)
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    data = model([node], {"x": ("n", "m")}, ["y"], {"shape": np.array([1, 77])}).SerializeToString()
    (problem,) = mlfc.check(data)
    assert problem.next_step == "Give them, with a number for each N: --shape x=N,N"


@pytest.mark.parametrize(
    "equation", ["ij,jk,kl->il", "bij,bj,bi->b", "i,j,k->kij", "ij,ij,ij->", "a,ab,abc,cd->d", "ij,jk,kl,lm->mi"]
)
def test_einsum_takes_any_number_of_operands(equation: str) -> None:
    terms = equation.partition("->")[0].split(",")
    rng = np.random.default_rng(5)
    sizes = {letter: 2 + place for place, letter in enumerate("abcdijklm")}
    values = {
        f"x{i}": rng.standard_normal([sizes[letter] for letter in term]).astype(np.float32)
        for i, term in enumerate(terms)
    }
    node = helper.make_node("Einsum", list(values), ["y"], equation=equation)
    weights = {"x1": values["x1"]}
    inputs = {name: value.shape for name, value in values.items() if name not in weights}
    module, params = mlfc.import_model(model([node], inputs, ["y"], weights).SerializeToString())
    mlfc.build(module, params=params)
    (found,) = run_main(module, {**values, **params})
    np.testing.assert_allclose(found, np.einsum(equation, *values.values()), rtol=1e-4, atol=1e-5)


def test_onnx_runtime_is_offered_only_where_it_runs_the_node() -> None:
    product = helper.make_node(
        "MatMulNBits", ["x", "b", "s", "", "order"], ["y"], domain="com.microsoft", K=32, N=8, bits=4, block_size=16
    )
    weights = {"b": np.zeros((8, 2, 8), np.uint8), "s": np.ones(16, np.float32)}
    weights["order"] = np.arange(32, dtype=np.int32)[::-1] // 16
    data = model([product], {"x": (2, 32)}, ["y"], weights).SerializeToString()
    (problem,) = mlfc.check(data)
    assert "--byoc onnxruntime" in str(problem.next_step)
    assert mlfc.check(data, byoc=["onnxruntime"]) == []
    (problem,) = mlfc.check(data, target="c -mcpu=cortex-m4")
    assert "onnxruntime" not in str(problem)
    zipped = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"])
    domains = [helper.make_opsetid("ai.onnx.ml", 1)]
    (problem,) = mlfc.check(model([zipped], {"x": (2, 2)}, ["y"], domains=domains).SerializeToString())
    assert "onnxruntime" not in str(problem)
