"""Hand-written modules with control flow, and their meaning in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.relay import ir
from mlfc.relay.ir import Expr, Function, FuncType, GlobalVar, IRModule, TensorType, Tuple, TupleGetItem, TupleType, Var
from mlfc.support.dims import Symbol

Array = npt.NDArray[Any]
INTEGER, BOOL = TensorType((), "int64"), TensorType((), "bool")


def floats(*shape: Any) -> TensorType:
    """Return the type of a float32 tensor."""
    return TensorType(shape, "float32")


def module(params: Sequence[Var], results: Sequence[Expr], **functions: Function) -> IRModule:
    """Return a module of `main` and other functions; outputs are ``y0``, ``y1``, ..."""
    names = tuple(f"y{index}" for index in range(len(results)))
    return IRModule({"main": Function(tuple(params), Tuple(tuple(results))), **functions}, names)


def function(kinds: Sequence[ir.Type], body: Callable[..., Expr]) -> Function:
    """Return a function of parameters of these types."""
    params = tuple(Var(f"p{index}", kind) for index, kind in enumerate(kinds))  # type: ignore[arg-type]  # tensors
    return Function(params, body(*params))


def loop(
    name: str,
    carried: Sequence[ir.Type],
    kept: Sequence[ir.Type],
    condition: Callable[..., Expr],
    turn: Callable[..., Sequence[Expr]],
) -> tuple[GlobalVar, dict[str, Function]]:
    """Return a loop and its functions: `condition` and `turn` take the loop-carried values, then the invariant ones."""
    kinds = (*carried, *kept)
    kind = FuncType(kinds, TupleType(tuple(carried)))
    head, again, done = (GlobalVar(f"{name}{suffix}", kind) for suffix in ("", "_turn", "_done"))
    functions = {
        name: function(kinds, lambda *p: ir.If(condition(*p), again, done, tuple(p), kind.result)),
        f"{name}_turn": function(kinds, lambda *p: ir.call_function(head, [*turn(*p), *p[len(carried) :]])),
        f"{name}_done": function(kinds, lambda *p: Tuple(tuple(p[: len(carried)]))),
    }
    return head, functions


def fields(expr: Expr) -> list[Expr]:
    """Return the fields of a tuple-valued expression."""
    assert isinstance(expr.type, TupleType)
    return [TupleGetItem(expr, index) for index in range(len(expr.type.fields))]


def one(value: Any) -> Expr:
    """Return an int64."""
    return ir.const(np.int64(value))


def counting() -> IRModule:
    """Return a module that repeats x * 2 + relu(x); the number of iterations is an input."""
    count, x = Var("count", INTEGER), Var("x", floats(2, 3))
    head, functions = loop(
        "again",
        (INTEGER, floats(2, 3)),
        (INTEGER, floats(2, 3)),
        lambda turn, _x, most, _y: ir.call("less", [turn, most]),
        lambda turn, x, _most, y: (
            ir.call("add", [turn, one(1)]),
            ir.call("add", [ir.call("multiply", [x, ir.const(np.float32(2))]), y]),
        ),
    )
    turns, result = fields(ir.call_function(head, [one(0), x, count, ir.call("nn.relu", [x])]))
    return module([count, x], [ir.call("tanh", [result]), turns], **functions)


def counting_means(inputs: Mapping[str, Array]) -> list[Array]:
    """Return the expected results of `counting`."""
    x = inputs["x"].copy()
    for _ in range(int(inputs["count"])):
        x = x * np.float32(2) + np.maximum(inputs["x"], 0)
    return [np.tanh(x), inputs["count"]]


def swapping() -> IRModule:
    """Return a module that computes Fibonacci numbers: each iteration swaps the two loop-carried values."""
    count = Var("count", INTEGER)
    head, functions = loop(
        "swap",
        (INTEGER, INTEGER, INTEGER),
        (),
        lambda left, _a, _b: ir.call("greater", [left, one(0)]),
        lambda left, a, b: (ir.call("subtract", [left, one(1)]), b, ir.call("add", [a, b])),
    )
    _, first, second = fields(ir.call_function(head, [count, one(0), one(1)]))
    return module([count], [first, second], **functions)


def swapping_means(inputs: Mapping[str, Array]) -> list[Array]:
    """Return the expected results of `swapping`."""
    a, b = 0, 1
    for _ in range(int(inputs["count"])):
        a, b = b, a + b
    return [np.int64(a), np.int64(b)]


def growing(high: int) -> IRModule:
    """Return a module that concatenates the state with itself in each iteration, so its shape changes, up to `high`."""
    rows, start = Symbol("rows", 1, high), Symbol("start", 1, 4)
    count, x = Var("count", INTEGER), Var("x", floats(start.dim, 2))
    state = floats(rows.dim, 2)
    kinds = (INTEGER, state)
    kind = FuncType(kinds, TupleType((floats(Symbol("last", 1, high).dim, 2),)))
    head, again, done = (GlobalVar(name, kind) for name in ("grow", "grow_turn", "grow_done"))
    # each function has its own symbols
    turn_rows, done_rows = Symbol("turn_rows", 1, high), Symbol("done_rows", 1, high)

    def doubled(left: Expr, x: Expr) -> Expr:
        wide = ir.call("concatenate", [Tuple((x, x))], axis=0)
        return ir.call_function(head, [ir.call("subtract", [left, one(1)]), wide])

    functions = {
        "grow": function(
            kinds,
            lambda left, x: ir.If(ir.call("greater", [left, one(0)]), again, done, (left, x), kind.result),
        ),
        "grow_turn": function((INTEGER, floats(turn_rows.dim, 2)), doubled),
        "grow_done": function((INTEGER, floats(done_rows.dim, 2)), lambda _, x: Tuple((x,))),
    }
    (last,) = fields(ir.call_function(head, [count, x]))
    return module([count, x], [ir.call("negative", [last])], **functions)


def growing_means(inputs: Mapping[str, Array]) -> list[Array]:
    """Return the expected results of `growing`."""
    return [-np.concatenate([inputs["x"]] * 2 ** int(inputs["count"]))]


def branching() -> IRModule:
    """Return a module that calls one of two functions, whose results have different shapes."""
    rows, flag = Symbol("rows", 1, 50), Var("flag", BOOL)
    x = Var("x", floats(rows.dim, 4))
    given, chosen = floats(rows.dim, 4), Symbol("chosen", 1, 100)
    result = TupleType((floats(chosen.dim, 4),))
    then, otherwise = (GlobalVar(name, FuncType((given,), result)) for name in ("twice", "sums"))
    functions = {
        "twice": function((given,), lambda x: Tuple((ir.call("concatenate", [Tuple((x, x))], axis=0),))),
        "sums": function((given,), lambda x: Tuple((ir.call("sum", [x], axis=(0,), keepdims=True),))),
    }
    (result_of,) = fields(ir.If(flag, then, otherwise, (x,), result))
    return module([flag, x], [ir.call("nn.relu", [result_of]), ir.call("sum", [result_of], axis=(0,))], **functions)


def branching_means(inputs: Mapping[str, Array]) -> list[Array]:
    """Return the expected results of `branching`."""
    x = inputs["x"]
    chosen = np.concatenate([x, x]) if inputs["flag"] else x.sum(0, keepdims=True)
    return [np.maximum(chosen, 0), chosen.sum(0)]


def choosing() -> IRModule:
    """Return a module with as many result rows as an input says: a dimension is the value of a tensor."""
    rows, count = Symbol("rows", 1, 60), Symbol("count", 0, 60)
    x, wanted = Var("x", floats(rows.dim, 3)), Var("wanted", INTEGER)
    table = ir.call("zeros", [], shape=(count.dim, 3), dtype="float32")
    body = Tuple((ir.call("add", [table, ir.call("sum", [x], axis=(0,), keepdims=True)]), wanted))
    main = Function((x, wanted), body, {"defines": (count,)})
    return IRModule({"main": main}, ("y0",))


def choosing_means(inputs: Mapping[str, Array]) -> list[Array]:
    """Return the expected results of `choosing`."""
    return [np.zeros((int(inputs["wanted"]), 3), np.float32) + inputs["x"].sum(0, keepdims=True)]


def collecting() -> IRModule:
    """Return a module that appends to a list in a loop, and combines its elements in two ways."""
    turns = Symbol("turns", 0, 1000)
    count, x = Var("count", INTEGER), Var("x", floats(2, 2))
    items = ir.ListType(floats(2, 2))
    head, functions = loop(
        "collect",
        (INTEGER, items),
        (INTEGER, floats(2, 2)),
        lambda turn, _items, most, _x: ir.call("less", [turn, most]),
        lambda turn, items, _most, x: (
            ir.call("add", [turn, one(1)]),
            ir.call("list_append", [items, ir.call("multiply", [x, ir.call("cast", [turn], dtype="float32")])]),
        ),
    )
    _, found = fields(
        ir.call_function(head, [one(0), ir.call("list_new", [], shape=(2, 2), dtype="float32"), count, x])
    )
    length = ir.call("list_length", [found])
    stacked = ir.call("list_stack", [found], shape=(turns.dim, 2, 2))
    return module([count, x], [ir.call("nn.relu", [stacked]), length], **functions)


def collecting_means(inputs: Mapping[str, Array]) -> list[Array]:
    """Return the expected results of `collecting`."""
    count, x = int(inputs["count"]), inputs["x"]
    parts = [x * np.float32(turn) for turn in range(count)]
    return [np.maximum(np.stack(parts) if parts else np.zeros((0, 2, 2), np.float32), 0), np.int64(count)]


def trading() -> IRModule:
    """Return a module that swaps two lists in each iteration of a loop, and returns their lengths."""
    count, x = Var("count", INTEGER), Var("x", floats(2))
    items = ir.ListType(floats(2))
    head, functions = loop(
        "trade",
        (INTEGER, items, items),
        (),
        lambda left, _a, _b: ir.call("greater", [left, one(0)]),
        lambda left, a, b: (ir.call("subtract", [left, one(1)]), b, a),
    )
    empty = ir.call("list_new", [], shape=(2,), dtype="float32")
    _, first, second = fields(ir.call_function(head, [count, empty, ir.call("list_append", [empty, x])]))
    return module([count, x], [ir.call("list_length", [first]), ir.call("list_length", [second])], **functions)


def trading_means(inputs: Mapping[str, Array]) -> list[Array]:
    """Return the expected results of `trading`."""
    traded = int(inputs["count"]) % 2
    return [np.int64(traded), np.int64(1 - traded)]


def picking() -> IRModule:
    """Return a module that selects the k largest elements, where k is an input and may be 0."""
    count = Symbol("count", 0, 3)
    x, wanted = Var("x", floats(5)), Var("wanted", INTEGER)
    body = Tuple((ir.call("topk", [x], k=count.dim, axis=0), wanted))
    return IRModule({"main": Function((x, wanted), body, {"defines": (count,)})}, ("y0",))


def picking_means(inputs: Mapping[str, Array]) -> list[Array]:
    """Return the expected results of `picking`."""
    return [np.sort(inputs["x"])[::-1][: int(inputs["wanted"])]]
