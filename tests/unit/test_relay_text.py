"""Relay text: printed forms as the format specifies them, and round trips from text."""

from __future__ import annotations

import ast
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc.errors import TextError
from mlfc.relay import ir
from mlfc.relay.op import Operator
from mlfc.relay.text import from_text, parameter_names, to_text
from mlfc.relay.visitor import post_order
from tests.counting import counted_calls
from tests.verify_relay import verify

FLOAT = ir.TensorType((1, 4), "float32")


def module_of(body: ir.Expr, *params: ir.Var, **attrs: Any) -> ir.IRModule:
    return ir.IRModule({"main": ir.Function(params, body, attrs)})


def text_of(body: ir.Expr, *params: ir.Var) -> str:
    """Return the lines between the braces."""
    text = to_text(module_of(body, *params), metadata=False)
    return "\n".join(line.strip() for line in text[text.index("{\n") + 2 : text.rindex("\n}")].splitlines())


def parsed(body: str, params: str = "%x: Tensor[(1, 4), float32]") -> ir.Function:
    return from_text(f'#[version = "0.0.5"]\ndef @main({params}) {{ {body} }}').main


def same(a: ir.Expr, b: ir.Expr) -> bool:
    """Compare graphs node by node, sharing included."""
    left, right = post_order(a), post_order(b)
    if len(left) != len(right):
        return False
    pairs = dict(zip(left, right, strict=True))
    return all(_same_node(p, q, pairs) for p, q in pairs.items())


def _same_node(p: ir.Expr, q: ir.Expr, pairs: dict[ir.Expr, ir.Expr]) -> bool:
    if type(p) is not type(q) or p.type != q.type:
        return False
    if isinstance(p, ir.Constant) and isinstance(q, ir.Constant):
        return p.data.tobytes() == q.data.tobytes()
    if isinstance(p, ir.Tuple) and isinstance(q, ir.Tuple):
        return [pairs[field] for field in p.fields] == list(q.fields)
    if isinstance(p, ir.TupleGetItem) and isinstance(q, ir.TupleGetItem):
        return p.index == q.index and pairs[p.value] is q.value
    if isinstance(p, ir.Call) and isinstance(q, ir.Call):
        target = same(p.op.body, q.op.body) if isinstance(p.op, ir.Function) else _same_target(p.op, q.op)
        return target and dict(p.attrs) == dict(q.attrs) and [pairs[arg] for arg in p.args] == list(q.args)
    return True


def _same_target(p: Any, q: Any) -> bool:
    return p is q if isinstance(p, Operator) else p.name == q.name


def test_a_module_as_tvm_prints_it() -> None:
    x, w = ir.Var("x", FLOAT), ir.Var("w", ir.TensorType((3, 4), "float32"))
    body = ir.call("nn.relu", [ir.call("nn.dense", [x, w], units=3)])
    assert to_text(module_of(body, x, w)) == (
        '#[version = "0.0.5"]\n'
        "def @main(%x: Tensor[(1, 4), float32], %w: Tensor[(3, 4), float32]) -> Tensor[(1, 3), float32] {\n"
        "  %0 = nn.dense(%x, %w, units=3);\n"
        "  nn.relu(%0)\n"
        "}\n"
    )


def test_defaults_are_left_out_and_required_attributes_printed() -> None:
    image, kernel = (
        ir.Var("x", ir.TensorType((1, 3, 8, 8), "float32")),
        ir.Var("w", ir.TensorType((4, 3, 3, 3), "float32")),
    )
    conv = ir.call("nn.conv2d", [image, kernel], padding=(1, 1, 1, 1), strides=(2, 2), channels=4, kernel_size=(3, 3))
    expected = "nn.conv2d(%x, %w, strides=[2, 2], padding=[1, 1, 1, 1], channels=4, kernel_size=[3, 3])"
    assert text_of(conv, image, kernel) == expected
    assert text_of(ir.call("transpose", [image], axes=None), image) == "transpose(%x, axes=None)"
    assert text_of(ir.call("clip", [image], a_min=0, a_max=6), image) == "clip(%x, a_min=0f, a_max=6f)"


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (3, "int32", "3"), (-3, "int32", "-3"), (3, "int64", "3i64"), (-(2**63), "int64", f"-{2**63}i64"),
        (3, "int16", "3i16"), (0.5, "float32", "0.5f"), (1.0, "float32", "1f"), (1e-12, "float32", "1e-12f"),
        (1 / 3, "float32", "0.33333334f"), (1 / 3, "float64", "0.3333333333333333f64"), (-0.0, "float32", "-0f"),
        (1.5, "float16", "1.5f16"), (np.inf, "float32", "inff"), (-np.inf, "float64", "-inff64"),
        (True, "bool", "True"), (16777216, "float32", "16777216f"), (3.4028235e38, "float32", "3.4028235e+38f"),
    ],
)  # fmt: skip
def test_scalars_keep_every_bit(value: float, dtype: str, text: str) -> None:
    scalar = ir.const(value, dtype)
    assert text_of(scalar) == text
    again = parsed(text).body
    assert isinstance(again, ir.Constant)
    assert (again.type, again.data.tobytes()) == (scalar.type, scalar.data.tobytes())


@given(st.floats(width=32, allow_nan=False), st.floats(allow_nan=False), st.integers(-(2**31), 2**31 - 1))
@settings(max_examples=200, deadline=None)
def test_any_scalar_keeps_every_bit(single: float, double: float, whole: int) -> None:
    for value, dtype in ((single, "float32"), (double, "float64"), (whole, "int32"), (whole, "int64")):
        scalar = ir.const(value, dtype)
        again = parsed(text_of(scalar)).body
        assert isinstance(again, ir.Constant)
        assert (again.type, again.data.tobytes()) == (scalar.type, scalar.data.tobytes())


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
@settings(max_examples=100, deadline=None)
def test_attributes_are_doubles_and_keep_every_bit(low: float, high: float) -> None:
    x = ir.Var("x", FLOAT)
    again = parsed(text_of(ir.call("clip", [x], a_min=low, a_max=high), x)).body
    assert isinstance(again, ir.Call)
    assert np.array([again.attrs["a_min"], again.attrs["a_max"]]).tobytes() == np.array([low, high]).tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3), np.int8(-128), np.uint8(3), np.float32(np.nan),
        np.zeros((0, 2), np.int64), np.array([True, False]), np.array([1.5], ml_dtypes.bfloat16),
    ],
)  # fmt: skip
def test_other_constants_travel_in_the_metadata_section(array: Any) -> None:
    text = to_text(module_of(ir.Tuple((ir.const(array), ir.const(1)))))
    assert "(meta[relay.Constant][0] /* ty=" in text
    body = from_text(text).main.body
    assert isinstance(body, ir.Tuple)
    first = body.fields[0]
    assert isinstance(first, ir.Constant)
    assert first.data.tobytes() == np.asarray(array).tobytes()
    assert first.type == ir.const(array).type
    assert to_text(from_text(text)) == text


def test_a_constant_used_twice_is_stored_once() -> None:
    table = ir.const(np.arange(4, dtype=np.float32).reshape(1, 4))
    x = ir.Var("x", FLOAT)
    text = to_text(module_of(ir.call("add", [ir.call("add", [x, table]), table]), x))
    assert text.count("meta[relay.Constant][0]") == 2
    assert "meta[relay.Constant][1]" not in text


def test_fused_groups_are_numbered_functions_with_numbers_of_their_own() -> None:
    p, x = ir.Var("p", FLOAT), ir.Var("x", FLOAT)
    group = ir.Function((p,), ir.call("exp", [ir.call("nn.relu", [p])]), {"Primitive": 1, "hash": 'a"b'})
    body = ir.call_function(group, [ir.call_function(group, [x])])
    text = to_text(module_of(body, x))
    assert text.split("{\n", 1)[1] == (
        '  %0 = fn (%p: Tensor[(1, 4), float32], Primitive=1, hash="a\\"b") -> Tensor[(1, 4), float32] {\n'
        "    %0 = nn.relu(%p);\n"
        "    exp(%0)\n"
        "  };\n"
        "  %1 = %0(%x);\n"
        "  %0(%1)\n"
        "}\n"
    )
    again = from_text(text)
    assert same(again.main.body, body)
    assert to_text(again) == text


def test_functions_call_each_other_by_name() -> None:
    p, x = ir.Var("p", FLOAT), ir.Var("x", FLOAT)
    other = ir.Function((p,), ir.call("nn.relu", [p]))
    body = ir.call_function(ir.GlobalVar("a.b", other.type), [x])
    text = to_text(ir.IRModule({"main": ir.Function((x,), body), "a.b": other}))
    assert "def @a_b(" in text
    assert "@a_b(%x)" in text
    again = from_text(text)
    verify(again)
    assert to_text(again) == text


def test_names_become_identifiers_each_once() -> None:
    names = ["x", "x", "serving_default:0", "serving_default.0", "1", "", "é", "x1", "let", "a b"]
    params = [ir.Var(name, FLOAT) for name in names]
    module = module_of(ir.Tuple(tuple(params)), *params)
    printed = list(parameter_names(module.main).values())
    assert len(set(printed)) == len(names)
    assert printed[0] == "x"
    assert printed[7] == "x1"
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) for name in printed)
    again = from_text(to_text(module))
    assert [param.name for param in again.main.params] == printed
    assert to_text(again) == to_text(module)


def test_spans_are_comments_that_no_name_can_break() -> None:
    span = ir.Span(("block/*conv*/", "relu\n// x", 'a"b'), "y")
    x = ir.Var("x", FLOAT, ir.Span(("input",)))
    module = module_of(ir.call("add", [ir.call("nn.relu", [x], span=span), ir.const(1.0, span=span)], span=span), x)
    text = to_text(module, spans=True)
    assert text.count("span=") == 4
    assert to_text(from_text(text)) == to_text(module)


def test_infix_operators_let_and_comments_are_read() -> None:
    text = """
        // a comment with { and "
        let %y: Tensor[(1, 4), float32] = %x * 2f - -1f /* nested /* comment */ "still */;
        %0 = (%y, %x < %y + 3f == True);
        (%0.1, %0.0)
    """
    printed = to_text(ir.IRModule({"main": parsed(text)}))
    assert printed.split("{\n", 1)[1] == (
        "  %0 = multiply(%x, 2f);\n  %1 = subtract(%0, -1f);\n  %2 = add(%1, 3f);\n  %3 = less(%x, %2);\n"
        "  %4 = equal(%3, True);\n  %5 = (%1, %4);\n  %6 = %5.1;\n  %7 = %5.0;\n  (%6, %7)\n}\n"
    )


NAMES_IN_PYTHON = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}


def nested(node: ast.expr) -> str:
    """Return Python's parse of an expression as nested calls of named operators."""
    if isinstance(node, ast.BinOp):
        return f"{NAMES_IN_PYTHON[type(node.op)]}({nested(node.left)}, {nested(node.right)})"
    assert isinstance(node, ast.Name)
    return f"%{node.id}"


@given(st.lists(st.tuples(st.sampled_from("+-*/"), st.sampled_from("xy")), max_size=12))
def test_infix_operators_bind_as_in_python(others: list[tuple[str, str]]) -> None:
    params = "%x: Tensor[(1, 4), float32], %y: Tensor[(1, 4), float32]"
    written = "".join(f" {sign} {name}" for sign, name in others)
    tree = ast.parse(f"x{written}", mode="eval").body
    assert same(parsed(re.sub("[xy]", r"%\g<0>", f"x{written}"), params).body, parsed(nested(tree), params).body)


def test_infix_comparisons_bind_less_than_sums_and_equality_least() -> None:
    params = "%x: Tensor[(1, 4), float32], %y: Tensor[(1, 4), float32]"
    flat = "%x < %y + %x * %y == %x - %y >= %y != %x <= %y"
    nested = (
        "not_equal(equal(less(%x, add(%y, multiply(%x, %y))), greater_equal(subtract(%x, %y), %y)), less_equal(%x, %y))"
    )
    assert same(parsed(flat, params).body, parsed(nested, params).body)


def test_a_comment_behind_a_part_of_infix_operators_is_about_that_part() -> None:
    body = parsed('%x + %x * exp(%x) /* span="product" */ - %x /* span="all" */').body
    assert isinstance(body, ir.Call)
    total = body.args[0]
    assert isinstance(total, ir.Call)
    product = total.args[1]
    assert [(node.op.name, node.span.nodes) for node in (body, total, product)] == [
        ("subtract", ("all",)), ("add", ()), ("multiply", ("product",)),
    ]  # fmt: skip


def test_the_first_fault_of_infix_operators_is_told() -> None:
    with pytest.raises(TextError, match="broadcast"):
        parsed("%x + %y - %z", "%x: Tensor[(1, 4), float32], %y: Tensor[(1, 3), float32]")


def test_attributes_come_in_any_order_with_any_width() -> None:
    function = parsed("sum(%x, keepdims=True, axis=[-1i64,])".replace(",]", "]"))
    assert isinstance(function.body, ir.Call)
    assert function.body.attrs == {"axis": (-1,), "keepdims": True, "exclude": False}


UNARY = ("nn.relu", "exp", "negative", "copy")


@st.composite
def graphs(draw: Any) -> ir.IRModule:
    """Return a random graph with sharing, tuples, constants and nested functions."""
    params = [ir.Var(f"p{i}", FLOAT) for i in range(draw(st.integers(1, 3)))]
    pool: list[ir.Expr] = [*params, ir.const(np.float32([[1, 2, 3, 4]]))]
    for _ in range(draw(st.integers(1, 12))):
        a = draw(st.sampled_from(pool))
        # scalars are printed inline, so text does not show whether they are shared
        b = draw(st.sampled_from(pool)) if draw(st.booleans()) else ir.const(0.25)
        kind = draw(st.sampled_from(["unary", "binary", "tuple", "group"]))
        if kind == "unary":
            pool.append(ir.call(draw(st.sampled_from(UNARY)), [a]))
        elif kind == "binary":
            pool.append(ir.call(draw(st.sampled_from(["add", "multiply", "maximum"])), [a, b]))
        elif kind == "tuple":
            pool.append(ir.TupleGetItem(ir.Tuple((a, b)), draw(st.integers(0, 1))))
        else:
            p = ir.Var("p", ir.tensor_type(a))
            group = ir.Function((p,), ir.call("exp", [ir.call("add", [p, ir.const(1.5)])]), {"Primitive": 1})
            pool.append(ir.call_function(group, [a]))
    return module_of(ir.Tuple(tuple(draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3)))), *params)


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_random_graphs_come_back_the_same(module: ir.IRModule) -> None:
    text = to_text(module)
    again = from_text(text)
    verify(again)
    assert to_text(again) == text
    assert same(again.main.body, module.main.body)


def test_a_deep_graph_of_a_thousand_nodes_takes_few_steps() -> None:
    x = ir.Var("x", ir.TensorType((1, 8, 8, 8), "float32"))
    weights = [ir.Var(f"w{i}", ir.TensorType((8, 8, 3, 3), "float32")) for i in range(500)]
    body: ir.Expr = x
    for weight in weights:
        body = ir.call("nn.relu", [ir.call("nn.conv2d", [body, weight], padding=(1, 1, 1, 1), kernel_size=(3, 3))])
    module = module_of(body, x, *weights)
    with counted_calls() as calls:
        text = to_text(module)
        assert to_text(from_text(text)) == text
    assert calls.number < 4_000_000
