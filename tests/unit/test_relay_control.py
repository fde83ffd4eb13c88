"""Dynamic dimensions, branches and loops in Relay: round trips through text, and verifier errors for every fault."""

from __future__ import annotations

import operator
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc.errors import InternalError, TextError, TypeCheckError
from mlfc.relay import ir
from mlfc.relay.ir import Function, GlobalVar, IRModule, TensorType, Tuple, Var
from mlfc.relay.text import from_text, to_text
from mlfc.support import dims
from mlfc.support.dims import Dim, Symbol
from tests.counting import counted_calls
from tests.unit.test_relay_text import same
from tests.verify_relay import verify

N, K, ROWS = Symbol("n"), Symbol("k", 0), Symbol("rows of x", 1, 32)
SYMBOLS = (N, K, ROWS, Symbol("else", 0, 7))
OPERATIONS: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "max": dims.maximum, "min": dims.minimum,
}  # fmt: skip
TREES = st.recursive(
    st.one_of(st.sampled_from(SYMBOLS), st.integers(-9, 70)),
    lambda inner: st.tuples(st.sampled_from(sorted(OPERATIONS)), inner, inner),
    max_leaves=9,
)
HEAD = '#[version = "0.0.5"]\n'


def of(*shape: Any, dtype: str = "float32") -> TensorType:
    return TensorType(tuple(item.dim if isinstance(item, Symbol) else item for item in shape), dtype)


def equal(one: IRModule, other: IRModule) -> bool:
    """Compare modules, including functions and symbols."""
    return one.functions.keys() == other.functions.keys() and all(
        same(function.body, other.functions[name].body)
        and function.type == other.functions[name].type
        and dict(function.attrs) == dict(other.functions[name].attrs)
        for name, function in one.functions.items()
    )


def _extent(tree: Any) -> Any:
    if not isinstance(tree, tuple):
        return tree.dim if isinstance(tree, Symbol) else tree
    name, a, b = tree
    return OPERATIONS[name](_extent(a), _extent(b))


@settings(max_examples=60, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=4))
def test_extents_survive_as_text(trees: list[Any]) -> None:
    try:
        extents = tuple(map(_extent, trees))
    except ZeroDivisionError:
        return
    shape = tuple(extent if dims.bounds(extent)[1] >= 0 and isinstance(extent, Dim) else 3 for extent in extents)
    x = Var("x", TensorType(shape, "int8"))
    body = ir.Tuple((x, ir.call("extents", [], values=extents, dtype="int64", shape=(len(extents),))))
    module = IRModule({"main": Function((x,), body)})
    text = to_text(module, spans=True)
    again = from_text(text)
    assert equal(module, again)
    assert to_text(again, spans=True) == text
    plain = to_text(module)
    assert to_text(from_text(plain)) == plain


def loop() -> IRModule:
    """Return a module whose loop appends rows to a tensor up to `limit` rows, and which counts nonzero elements."""
    size, result, later = Symbol("size", 0), Symbol("result", 0), Symbol("later", 0)
    states = (Var("go", of(dtype="bool")), Var("seen", of(size, 4)), Var("x", of(N, 4)))
    kinds = tuple(param.type for param in states)
    head, turn, done = (GlobalVar(name, ir.FuncType(kinds, of(symbol, 4))) for name, symbol in
                        (("loop", result), ("turn", later), ("done", size)))  # fmt: skip
    go, seen, x = states
    step = Var("go", go.type), Var("seen", seen.type), Var("x", x.type)
    longer = ir.call("concatenate", [Tuple((step[1], step[2]))], axis=0)
    functions = {
        "loop": Function(states, ir.if_else(go, turn, done, states, type=of(result, 4))),
        "turn": Function(step, ir.call_function(head, [step[0], longer, step[2]], type=of(later, 4))),
        "done": Function(states, seen),
    }
    start = Var("x", of(N, 4)), Var("go", of(dtype="bool"))
    runs = [ir.call_function(head, [start[1], start[0], start[0]], type=of(Symbol(f"run{i}", 0), 4)) for i in range(2)]
    count = ir.call("sum", [ir.call("cast", [runs[1]], dtype="int64")], axis=(0, 1))
    wide = ir.call("full", [ir.const(1.0)], shape=(K.dim, 2 * ROWS.dim), dtype="float32")
    rows = ir.call("extents", [], values=(N.dim + 1,), dtype="int64", shape=())
    body = Tuple((*runs, wide, count, rows))
    return IRModule({**functions, "main": Function(start, body, {"defines": (K, ROWS)})}, ("a", "b", "c"))


def test_loops_and_what_data_defines_survive_as_text() -> None:
    module = loop()
    verify(module)
    assert module.main.type.result == ir.TupleType(
        (of(Symbol("run0", 0), 4), of(Symbol("run1", 0), 4), of(K, 2 * ROWS.dim))
    )
    text = to_text(module, spans=True)
    again = from_text(text)
    verify(again)
    assert equal(module, again)
    assert to_text(again, spans=True) == text
    assert "let %r1: Tensor[(run1, 4), float32] = @loop(%go, %x, %x);" in text
    assert 'symbols="run0=0..,run1=0..,k=0..,rows_of_x=1..32"' in text
    assert "defines=[k, rows_of_x]" in text
    assert "Tensor[(k, 2 * rows_of_x), float32]" in text
    assert "if (%go) {\n    @turn(%go, %seen, %x)\n  } else {\n    @done(%go, %seen, %x)\n  }" in text


def test_shapes_as_tvm_writes_them_have_symbols_of_their_own() -> None:
    shown = to_text(loop(), any_shapes=True)
    assert "def @turn(%go: bool, %seen: Tensor[(?, 4), float32], %x: Tensor[(?, 4), float32]) -> Tensor[(?, 4)" in shown
    text = f"""{HEAD}
def @main(%x: Tensor[(?, 3), float32], %y: Tensor[(1, d3), float32]) -> (Tensor[(?, 3), float32], int32) {{
  (@f(%x), 1)
}}
def @f(%x: Tensor[(?, 3), float32]) -> Tensor[(?, 3), float32] {{ let %y: Tensor[(?, 3), float32] = exp(%x); %y }}
"""
    module = from_text(text)
    verify(module)
    kinds = [str(param.type) for param in module.main.params]
    assert kinds == ["Tensor[(d7, 3), float32]", "Tensor[(1, d3), float32]"]
    assert str(module.functions["f"].type) == "fn (Tensor[(d4, 3), float32]) -> Tensor[(d4, 3), float32]"
    assert str(module.main.body.type) == "(Tensor[(d7, 3), float32], int32)"


def test_branches_may_use_what_is_around_them() -> None:
    module = from_text(f"""{HEAD}def @main(%go: bool, %x: Tensor[(n, 3), float32]) {{
      %0 = exp(%x);
      %1 = if (%go) {{ %1 = add(%0, %x); negative(%1) }} else {{ if (%go) {{ %0 }} else {{ @f(%x) }} }};
      add(%1, if (%go) {{ @f(%x) }} else {{ @g(%x) }})
    }}
    def @f(%x: Tensor[(n, 3), float32]) -> Tensor[(n, 3), float32] {{ %x }}
    def @g(%x: Tensor[(m, 3), float32]) -> Tensor[(m, 3), float32] {{ sqrt(%x) }}""")
    verify(module)
    assert sorted(module.functions) == ["else_0", "else_1", "f", "g", "main", "then_0", "then_1"]
    text = to_text(module)
    assert to_text(from_text(text)) == text
    assert "if (%go) {\n    @f(%x)\n  } else {\n    @g(%x)\n  }" in text
    (taken,) = [name for name in module.functions if "negative" in to_text(IRModule({"main": module.functions[name]}))]
    assert [param.name for param in module.functions[taken].params] == ["v0", "x", "go"]


def test_a_result_has_symbols_of_its_own_where_branches_differ() -> None:
    x, y, go = Var("x", of(N, 4)), Var("y", of(K, 4)), Var("go", of(dtype="bool"))
    first, second = Function((x, y), x), Function((x, y), y)
    targets = GlobalVar("first", first.type), GlobalVar("second", second.type)
    with pytest.raises(TypeCheckError, match=r"functions of an if return different types .*\(n, 4\).* and .*\(k, 4\)"):
        ir.if_else(go, *targets, [x, y])
    with pytest.raises(TypeCheckError, match="do not match an if of"):
        ir.if_else(go, *targets, [x, y], type=of(Symbol("r"), 5))
    with pytest.raises(TypeCheckError, match=r"expected a condition of one bool, got Tensor"):
        ir.if_else(x, *targets, [x, y], type=of(Symbol("r"), 4))
    module = IRModule(
        {"main": Function((x, y, go), ir.if_else(go, *targets, [x, y], type=of(Symbol("r", 0), 4))),
         "first": first, "second": second}
    )  # fmt: skip
    verify(module)
    text = to_text(module)
    assert 'symbols="r=0.."' in text
    assert "let %r0: Tensor[(r, 4), float32] = if (%go) {" in text
    assert equal(module, from_text(text))
    with pytest.raises(InternalError, match=r"@main: the symbol n comes from two places"):
        verify(module.with_body(ir.if_else(go, *targets, [x, y], type=of(N, 4))))


X = Var("x", of(N, 4))
SAME = ir.FuncType((of(N, 4),), of(N, 4))


def reshaped(extent: Any) -> ir.Expr:
    return ir.call("full", [ir.const(1.0)], shape=(extent,), dtype="float32")


def faulty_loop(**changes: Function) -> IRModule:
    module = loop()
    return replace(module, functions={**module.functions, **changes})


def _unconditional() -> IRModule:
    f, g = (Function((X,), ir.call_function(GlobalVar(name, SAME), [X])) for name in "gf")
    return IRModule({"main": Function((X,), X), "f": f, "g": g})


def _not_last() -> IRModule:
    f = Function((X,), ir.call("exp", [ir.call_function(GlobalVar("f", SAME), [X])]))
    return IRModule({"main": Function((X,), X), "f": f})


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (IRModule({"main": Function((X,), reshaped(K.dim))}), r"@main: the symbol k comes from nowhere"),
        (IRModule({"main": Function((X,), reshaped(dims.maximum(K.dim, N.dim)))}), r"the symbol k comes from nowhere"),
        (
            IRModule({"main": Function((Var("x", of(N.dim + 1)),), ir.const(1))}),
            r"the symbol n comes from nowhere",
        ),
        (
            IRModule({"main": Function((X,), Tuple((X, ir.const(3))), {"defines": (N,)})}),
            r"the symbol n comes from two places",
        ),
        (
            IRModule({"main": Function((X,), Tuple((reshaped(K.dim), ir.call("sum", [ir.call("cast", [reshaped(K.dim)],
             dtype="int32")]))), {"defines": (K,)})}),
            r"the symbol k depends on itself",
        ),
        (
            IRModule({"main": Function((X,), Tuple((reshaped(K.dim), X)), {"defines": (K,)})}),
            r"expected one integer for the symbol k, got Tensor",
        ),
        (IRModule({"main": Function((X,), X, {"defines": (K,)})}), r"must be a tuple of more than 1 fields"),
        (_unconditional(), r"in a circle that never ends: f, g"),
        (_not_last(), r"in a circle, and not as their last step: f"),
        (faulty_loop(done=Function((X,), X)), r"@loop: @done is of type .* but is used as"),
    ],
)  # fmt: skip
def test_names_the_fault(faulty: IRModule, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify(faulty)


@pytest.mark.parametrize(
    "extent",
    [
        " * ".join("n" * 16),
        " * ".join(["(a + b + c + d + e)"] * 9),
        " * ".join(f"({' + '.join(f'x{i}_{j}' for j in range(20))})" for i in range(2)) + " + 1",
        "floordiv(" + " * ".join(["(a + b + 1)"] * 12) + ", a - b + 3)",
        "floordiv(" * 60 + "n" + ", m + 1)" * 60,
        "(" * 61 + "n" + ")" * 61,
        "max(" * 60 + "n" + ", floormod(m, 7) - n)" * 60,
        " * ".join([str(10**17)] * 16),
    ],
)
def test_expressions_cannot_take_for_ever(extent: str) -> None:
    count = 10_000 // (10 + len(re.findall(r"\w+|\S", extent)))
    text = f"{HEAD}def @main(" + ", ".join(f"%x{i}: Tensor[({extent}), int8]" for i in range(count)) + ") { 1 }"

    with counted_calls() as calls:
        try:
            from_text(text)
        except TextError as error:
            assert "^" in error.cause  # noqa: PT017
    assert calls.number < 15_000_000, calls.number
