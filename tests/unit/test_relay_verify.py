"""The verifier of modules reports every planted fault, all in one error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfc.errors import InternalError
from mlfc.relay import ir
from tests.verify_relay import verify

KIND = ir.TensorType((2, 3), "float32")
X, Y = ir.Var("x", KIND), ir.Var("y", KIND)
RELU = ir.call("nn.relu", [X], span=ir.Span(("node7",)))


def module(body: ir.Expr, *params: ir.Var, **functions: ir.Function) -> ir.IRModule:
    return ir.IRModule({"main": ir.Function(params, body), **functions})


def test_accepts_what_is_right() -> None:
    p = ir.Var("p", KIND)
    group = ir.Function((p,), ir.call("exp", [p]), {"Primitive": 1})
    body = ir.Tuple((ir.call_function(group, [RELU]), ir.call_function(ir.GlobalVar("f", group.type), [X])))
    verify(replace(module(body, X, f=group), output_names=("a", "b")))


WRONG_TYPE = replace(RELU, type=ir.TensorType((3, 2), "float32"))
OTHER = ir.FuncType((KIND,), ir.TensorType((9,), "int8"))


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (module(ir.call("add", [X, Y]), X), r"@main: the variable %y is not bound"),
        (module(RELU, X, ir.Var("x", KIND)), r"two parameters are called 'x'"),
        (module(WRONG_TYPE, X), r"nn.relu is of .*\(3, 2\).* its rule gives .*\(2, 3\).* \(node node7\)"),
        (module(replace(RELU, args=(X, X)), X), r"nn.relu takes 1 arguments, not 2"),
        (module(replace(ir.call("sum", [X]), attrs={}), X), r"sum has incomplete attributes"),
        (module(replace(ir.call("sum", [X]), attrs={"axis": 7}), X), r"sum does not take .* axis 7"),
        (module(replace(RELU, op=ir.GlobalVar("f", ir.FuncType((KIND,), KIND))), X), r"there is no function @f"),
        (module(replace(RELU, op=ir.GlobalVar("f", OTHER)), X, f=ir.Function((Y,), Y)), r"@f is of type .* used as"),
        (module(replace(RELU, op=ir.Function((Y,), ir.call("sum", [Y]))), X), r"a function of type .* is called with"),
        (module(replace(RELU, op=ir.Function((Y,), ir.call("add", [Y, X]))), X), r"the variable %x is not bound"),
        (replace(module(RELU, X), output_names=("a", "b")), r"1 results have 2 names"),
        (replace(module(ir.Tuple((X, X)), X), output_names=("a", "a")), r"not unique"),
        (ir.IRModule({}), r"there is no function @main"),
    ],
)
def test_names_the_fault(faulty: ir.IRModule, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify(faulty)


def test_functions_must_not_call_each_other_in_a_circle() -> None:
    kind = ir.FuncType((KIND,), KIND)
    f = ir.Function((X,), ir.call_function(ir.GlobalVar("g", kind), [X]))
    g = ir.Function((X,), ir.call_function(ir.GlobalVar("f", kind), [X]))
    with pytest.raises(InternalError, match="in a circle that never ends: f, g"):
        verify(module(X, X, f=f, g=g))


def test_lists_every_fault() -> None:
    with pytest.raises(InternalError, match=r"%y is not bound.*its rule gives.*3 names"):
        verify(replace(module(ir.Tuple((Y, WRONG_TYPE)), X), output_names=("a", "b", "c")))
