"""Fusion: operators that join a group, operators that must not, and groups that can be lowered."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc.relay import ir
from mlfc.relay.op import Kind, Operator
from mlfc.relay.visitor import post_order
from mlfc.transform.fuse import FuseOps
from tests.relay_run import free_vars, operators


def var(name: str, *shape: int, dtype: str = "float32") -> ir.Var:
    return ir.Var(name, ir.TensorType(shape, dtype))


def conv(data: ir.Expr, span: ir.Span = ir.NO_SPAN) -> ir.Call:
    channels = ir.tensor_type(data).shape[-1]
    weight = ir.const(np.ones((1, 1, channels, channels), np.float32))
    return ir.call("nn.conv2d", [data, weight], data_layout="NHWC", kernel_layout="HWIO", span=span)


def relu(data: ir.Expr) -> ir.Call:
    return ir.call("nn.relu", [data])


def add(a: ir.Expr, b: ir.Expr) -> ir.Call:
    return ir.call("add", [a, b])


def fused(body: ir.Expr, **options: int) -> ir.IRModule:
    module = FuseOps(**options)(ir.IRModule({"main": ir.Function(tuple(free_vars(body)), body)}))
    check(module)
    return module


def check(module: ir.IRModule) -> None:
    """Fail unless every call of main is a view or a group with at most one emitter and without constant parameters."""
    for node in post_order(module.main.body):
        if not isinstance(node, ir.Call):
            continue
        if isinstance(node.op, Operator):
            assert node.op.kind is Kind.VIEW
            continue
        assert isinstance(node.op, ir.Function)
        assert node.op.attrs == {"Primitive": 1}
        assert not any(isinstance(arg, ir.Constant) for arg in node.args)
        assert set(free_vars(node.op.body)) == set(node.op.params)
        calls = [item for item in post_order(node.op.body) if isinstance(item, ir.Call)]
        emitters = [call for call in calls if isinstance(call.op, Operator) and call.op.emit is not None]
        assert len(emitters) <= 1
        assert all(isinstance(call.op, Operator) and call.op.kind is not Kind.VIEW for call in calls)


def test_bias_and_activation_join_the_convolution_and_constants_move_in() -> None:
    body = relu(ir.call("nn.bias_add", [conv(var("x", 1, 4, 4, 8)), ir.const(np.ones(8, np.float32))], axis=3))
    assert operators(fused(body)) == ["nn.conv2d+nn.bias_add+nn.relu"]


def test_the_later_of_two_convolutions_takes_the_residual_addition() -> None:
    x = var("x", 1, 4, 4, 8)
    first = relu(conv(x, ir.Span(("first",))))
    second = conv(first, ir.Span(("second",)))
    assert operators(fused(relu(add(second, first)))) == ["nn.conv2d+nn.relu", "nn.conv2d+add+nn.relu"]


def test_a_gate_that_meets_its_source_again_stays_one_group() -> None:
    data = conv(var("x", 1, 4, 4, 8))
    swish = ir.call("multiply", [data, ir.call("sigmoid", [data])])
    assert operators(fused(swish)) == ["nn.conv2d+sigmoid+multiply"]


def test_a_value_that_others_read_too_ends_its_group() -> None:
    data = relu(conv(var("x", 1, 4, 4, 8)))
    both = ir.Tuple((ir.call("exp", [data]), ir.call("nn.max_pool2d", [data], pool_size=(2, 2), layout="NHWC")))
    assert operators(fused(both)) == ["nn.conv2d+nn.relu", "exp", "nn.max_pool2d"]


def test_anchors_read_memory_so_producers_stay_out() -> None:
    x = var("x", 1, 4, 4, 8)
    assert operators(fused(conv(relu(x)))) == ["nn.relu", "nn.conv2d"]


def test_cheap_producers_join_what_reads_several_times_and_expensive_ones_do_not() -> None:
    x = var("x", 4, 8)
    assert operators(fused(ir.call("nn.softmax", [add(x, ir.const(1.0))]))) == ["add+nn.softmax"]
    assert operators(fused(ir.call("nn.softmax", [ir.call("erf", [x])]))) == ["erf", "nn.softmax"]
    assert operators(fused(ir.call("sum", [ir.call("erf", [x])], axis=(1,)))) == ["erf+sum"]


def test_expensive_values_are_not_computed_again_for_each_row() -> None:
    row, x = var("row", 1, 8), var("x", 64, 8)
    assert operators(fused(add(ir.call("exp", [row]), x))) == ["exp", "add"]
    assert operators(fused(add(ir.call("exp", [x]), row))) == ["exp+add"]


def test_views_stand_alone_and_take_no_part_in_groups() -> None:
    x = var("x", 4, 8)
    body = relu(ir.call("reshape", [relu(x)], newshape=(32,)))
    assert operators(fused(body)) == ["nn.relu", "reshape", "nn.relu"]


def test_outputs_without_storage_of_their_own_are_copied() -> None:
    x = var("x", 4)
    y = relu(x)
    body = ir.Tuple((x, y, y, ir.const(np.ones(4, np.float32)), ir.call("reshape", [y], newshape=(2, 2))))
    names = operators(fused(body))
    assert names.count("copy") == 4
    assert names.count("nn.relu") == 1


def test_an_inner_output_is_in_memory() -> None:
    y = relu(var("x", 4))
    assert operators(fused(ir.Tuple((y, add(y, ir.const(1.0)))))) == ["nn.relu", "add"]


def test_the_size_of_groups_is_limited() -> None:
    body: ir.Expr = var("x", 4)
    for _ in range(10):
        body = relu(body)
    assert operators(fused(body, max_depth=4)) == ["+".join(["nn.relu"] * count) for count in (2, 4, 4)]


def test_spans_of_a_group_name_all_nodes_and_the_last_tensor() -> None:
    x = var("x", 1, 4, 4, 8)
    body = ir.call("nn.relu", [conv(x, ir.Span(("a",), "t"))], span=ir.Span(("b",), "u"))
    result = fused(body).main.body
    assert result.span == ir.Span(("a", "b"), "u")


@st.composite
def graphs(draw: st.DrawFn) -> ir.Expr:
    """Return a random graph of square matrices with sharing, several outputs and every kind of operator."""
    values: list[ir.Expr] = [var("x", 4, 4), var("y", 4, 4)]
    unary = ("nn.relu", "exp", "transpose", "nn.softmax", "reshape")
    for _ in range(draw(st.integers(1, 14))):
        name = draw(st.sampled_from((*unary, "add", "multiply", "nn.dense")))
        args = [draw(st.sampled_from(values))]
        attrs: dict[str, object] = {}
        if name in ("add", "multiply"):
            args.append(draw(st.sampled_from(values)))
        elif name == "nn.dense":
            args.append(ir.const(np.eye(4, dtype=np.float32)))
            attrs = {"units": 4}
        elif name == "transpose":
            attrs = {"axes": (1, 0)}
        elif name == "reshape":
            attrs = {"newshape": (4, 4)}
        values.append(ir.call(name, args, attrs))
    return ir.Tuple(tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))))


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_every_operator_is_computed_in_exactly_one_group(body: ir.Expr) -> None:
    module = fused(body)
    made = "+".join(operators(module)).split("+")
    given_names = [ir.op_name(node) for node in post_order(body) if isinstance(node, ir.Call)]
    assert sorted(name for name in made if name and name != "copy") == sorted(map(str, given_names))
