"""Traversing and rewriting graphs: order, sharing, depth."""

from __future__ import annotations

import pytest

from mlfc.relay import ir
from mlfc.relay.visitor import Rewriter, post_order, rewrite, substitute, users
from tests.relay_run import free_vars

X = ir.Var("x", ir.TensorType((2, 3), "float32"))
Y = ir.Var("y", ir.TensorType((2, 3), "float32"))


def relu(expr: ir.Expr) -> ir.Call:
    return ir.call("nn.relu", [expr], span=ir.Span(("node",), "tensor"))


def test_post_order_reads_before_readers_each_once_from_left_to_right() -> None:
    a, b = relu(X), relu(Y)
    both = ir.call("add", [a, b])
    pair = ir.Tuple((both, a))
    assert post_order(pair) == [X, a, Y, b, both, pair]


def test_graphs_of_ten_thousand_operators_are_walked_and_rewritten() -> None:
    expr: ir.Expr = X
    for _ in range(10_000):
        expr = relu(expr)
    assert len(post_order(expr)) == 10_001
    assert len(users(expr)) == 10_001
    other = substitute(expr, {X: Y})
    assert free_vars(other) == [Y]
    assert len(post_order(other)) == 10_001


def test_rewriting_keeps_what_does_not_change_and_shares_what_is_shared() -> None:
    left, shared = relu(X), relu(Y)
    body = ir.call("add", [ir.call("add", [left, shared]), shared])
    assert rewrite(body, lambda node: node) is body
    result = substitute(body, {Y: X})
    assert isinstance(result, ir.Call)
    inner, again = result.args
    assert isinstance(inner, ir.Call)
    assert inner.args[0] is left
    assert inner.args[1] is again
    assert again is not shared
    assert again.span == shared.span


def test_rewriting_infers_types_again() -> None:
    wide = ir.Var("wide", ir.TensorType((4, 2, 3), "float32"))
    assert substitute(ir.call("add", [relu(X), Y]), {X: wide}).type == wide.type


def test_users_list_each_place_of_reading() -> None:
    a = relu(X)
    square = ir.call("multiply", [a, a])
    assert users(square)[a] == [square, square]
    assert users(square)[square] == []


def test_a_rewriter_knows_how_often_the_graph_reads_what_it_rewrote() -> None:
    a = relu(X)
    body = ir.call("multiply", [relu(a), a])
    seen: dict[tuple[str | None, int], int] = {}

    def visit(node: ir.Expr) -> ir.Expr:
        if isinstance(node, ir.Call):
            seen[ir.op_name(node), len(seen)] = rewriter.reads(node)
        return Y if node is X else node

    rewriter = Rewriter(visit)
    rewriter(body)
    assert list(seen.values()) == [2, 1, 1]


def test_functions_bind_their_parameters() -> None:
    function = ir.Function((X,), ir.call("add", [X, Y]))
    assert free_vars(function) == [Y]
    assert free_vars(function.body) == [X, Y]
    assert post_order(function)[-1] is function


@pytest.mark.parametrize("index", [0, 1])
def test_tuples_are_rewritten_field_by_field(index: int) -> None:
    item = ir.TupleGetItem(ir.Tuple((X, relu(X))), index)
    result = substitute(item, {X: Y})
    assert isinstance(result, ir.TupleGetItem)
    assert free_vars(result) == [Y]
    assert result.index == index
