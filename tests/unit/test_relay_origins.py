"""Text with spans restores the module exactly: unusual names, spans, and the metadata beside the functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc.errors import TextError
from mlfc.relay import ir
from mlfc.relay.ir import Quantization, Span
from mlfc.relay.text import from_text, section_text, text_and_constants, to_text
from mlfc.relay.visitor import post_order

FLOAT = ir.TensorType((1, 4), "float32")
# including everything that could end a comment or a string, start one, or look like a line of the text
NAMES = st.text(st.sampled_from('ab*/\\"\n\t ;:,%@#[]{}()=é\u2028\U0001f600\ud800\x00')) | st.sampled_from(
    ["*/", "/*", "//", "#[metadata]", '"', "\\", "\\u002a", 'a" tensor="b', "y:0", "a,b"]
)
SPANS = st.builds(Span, st.lists(NAMES, max_size=3).map(tuple), st.none() | NAMES)


def described(expr: ir.Expr) -> tuple[Any, ...]:
    """Return all properties of a node."""
    own = getattr(expr, "name", None), expr.span, expr.type
    if isinstance(expr, ir.Constant):
        return (*own, expr.data.tobytes())
    if isinstance(expr, ir.Call):
        target = walked(expr.op) if isinstance(expr.op, ir.Function) else expr.op.name
        return (*own, dict(expr.attrs), target)
    return own


def walked(function: ir.Function) -> list[tuple[Any, ...]]:
    """Return all properties of a function's nodes, with the positions of each node's operands."""
    order = [*function.params, *(node for node in post_order(function.body) if node not in function.params)]
    places = {node: place for place, node in enumerate(order)}
    return [
        (function.span, dict(function.attrs)),
        *((*described(node), *(places[part] for part in read(node))) for node in order),
    ]


def read(node: ir.Expr) -> tuple[ir.Expr, ...]:
    if isinstance(node, ir.Call):
        return node.args
    if isinstance(node, ir.Tuple):
        return node.fields
    return (node.value,) if isinstance(node, ir.TupleGetItem) else ()


@st.composite
def modules(draw: Any) -> ir.IRModule:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    params = [ir.Var(name, FLOAT, draw(SPANS)) for name in names]
    pool: list[ir.Expr] = [*params, ir.const(np.float32([[1, 2, 3, 4]]), name=draw(st.none() | NAMES))]
    for _ in range(draw(st.integers(0, 6))):
        a, b, span = draw(st.sampled_from(pool)), draw(st.sampled_from(pool)), draw(SPANS)
        scalar = ir.const(draw(st.sampled_from([0.25, -1.0])), name=draw(st.none() | NAMES), span=draw(SPANS))
        kind = draw(st.sampled_from(["unary", "binary", "tuple", "group"]))
        if kind == "unary":
            pool.append(ir.call("multiply", [a, scalar], span=span))
        elif kind == "binary":
            pool.append(ir.call("add", [a, b], span=span))
        elif kind == "tuple":
            pool.append(ir.TupleGetItem(ir.Tuple((a, b), draw(SPANS)), draw(st.integers(0, 1)), span))
        else:
            p = ir.Var(draw(NAMES), FLOAT, draw(SPANS))
            group = ir.Function((p,), ir.call("exp", [p], span=draw(SPANS)), {"Primitive": 1}, draw(SPANS))
            pool.append(ir.call_function(group, [a], span=span))
    results = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=2))
    body = ir.Tuple(tuple(results), draw(SPANS))
    quantization = st.dictionaries(NAMES, st.builds(Quantization, st.floats(0, 1e9), st.integers(-(2**31), 2**31)))
    return ir.IRModule(
        {"main": ir.Function(tuple(params), body, {}, draw(SPANS))},
        tuple(draw(st.lists(NAMES, min_size=len(results), max_size=len(results)))),
        draw(quantization),
        draw(st.dictionaries(NAMES, NAMES, max_size=2)),
    )


@given(modules())
@settings(max_examples=60, deadline=None)
def test_any_module_comes_back_whole(module: ir.IRModule) -> None:
    text = to_text(module, spans=True)
    again = from_text(text)
    assert walked(again.main) == walked(module.main)
    assert list(again.output_names) == list(module.output_names)
    assert list(again.quantization.items()) == list(module.quantization.items())
    assert dict(again.source) == dict(module.source)
    assert to_text(again, spans=True) == text
    text.encode()


@given(modules())
@settings(max_examples=25, deadline=None)
def test_constants_may_travel_beside_the_text(module: ir.IRModule) -> None:
    text, constants = text_and_constants(module, spans=True)
    again = from_text(text, constants=[constant.data for constant in constants])
    assert walked(again.main) == walked(module.main)
    assert text + section_text(constants) == to_text(module, spans=True)


def test_what_a_reader_sees() -> None:
    x = ir.Var("x:0", FLOAT, Span((), "x:0"))
    body = ir.call("nn.relu", [x], span=Span(("a/*b", "c"), "y"))
    module = ir.IRModule({"main": ir.Function((x,), body)}, ("y",), {"y": Quantization(0.5, -3)}, {"format": "onnx"})
    assert to_text(module, spans=True) == (
        '#[version = "0.0.5"]\n'
        '/* module={"output_names": ["y"], "quantization": {"y": [0.5, -3]}, "source": {"format": "onnx"}} */\n'
        'def @main(%x_0: Tensor[(1, 4), float32] /* tensor="x:0" name="x:0" */) -> Tensor[(1, 4), float32] {\n'
        '  nn.relu(%x_0) /* span=["a/\\u002ab", "c"] tensor="y" */\n'
        "}\n"
    )


HEAD, MAIN = '#[version = "0.0.5"]\n', "def @main(%x: float32) { exp(%x) }"


@pytest.mark.parametrize(
    "comment",
    [
        "span=conv:0:0",
        " " * 300_000 + "x",
        'span="a"' + " " * 300_000 + "x",
        "span=",
        'span="a',
        "span=[]",
        'span="\\x"',
        'ty=int8 span="a"',
        "a comment",
        "span=[1]",
    ],
)
def test_other_comments_say_nothing(comment: str) -> None:
    module = from_text(f"{HEAD}/* {comment} */ {MAIN[:-2]} /* {comment} */ }}")
    assert module.main.body.span == ir.NO_SPAN


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ("{", "invalid facts of a module"),
        ("[]", "expected an object"),
        ('{"other": 1}', "expected an object"),
        ('{"output_names": "y"}', "list of strings"),
        ('{"output_names": [1]}', "list of strings"),
        ('{"output_names": ["a", "b"]}', "1 results, but 2 names"),
        ('{"quantization": {"y": [1]}}', "scale and a zero point"),
        ('{"quantization": {"y": [NaN, 0]}}', "not a JSON number"),
        ('{"quantization": {"y": [1e999, 0]}}', "scale and a zero point"),
        ('{"quantization": {"y": [1.0, true]}}', "scale and a zero point"),
        ('{"source": {"sha256": 5}}', "strings by name"),
        ("{}" + " " * 300_000 + "x", "invalid facts"),
        ('{"source": ' + "[" * 100_000, "nested too deeply|invalid facts"),
        ('{"quantization": {"y": [0.5, ' + "9" * 10_000 + "]}}", "invalid facts"),
    ],
)
def test_broken_facts_are_refused_where_they_stand(facts: str, message: str) -> None:
    with pytest.raises(TextError, match=message) as caught:
        from_text(f"{HEAD}/* module={facts} */\n{MAIN}", "a.relay")
    assert str(caught.value.place).startswith("a.relay:")


def test_two_parameters_cannot_take_one_name() -> None:
    with pytest.raises(TextError, match="given twice"):
        from_text(f'{HEAD}def @main(%x: float32, %y: float32 /* name="x" */) {{ %x }}')
