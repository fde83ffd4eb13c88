"""Interpreter of modules with dynamic shapes and control flow, expression by expression, for tests of importers.

Symbols are bound to dimension sizes of inputs, to values that a function defines, and to dimension sizes of results.
Each operator is then one of static shape, which constant evaluation computes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.ops.evaluate import evaluate
from mlfc.relay import ir
from mlfc.relay.op import Kind, Operator
from mlfc.relay.visitor import children, post_order
from mlfc.support import dtypes
from mlfc.support.dim_walk import walked
from mlfc.support.dims import Dim, Symbol, substituted, symbols_of
from tests.harness import loaded_by_llvm

Array: TypeAlias = npt.NDArray[Any]
Bound: TypeAlias = "dict[Symbol, int]"
# arrays, lists of arrays, and tuples of both
Value: TypeAlias = Any

_OPERATIONS: dict[str, Any] = {
    "+": operator.add, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "max": max, "min": min,
}  # fmt: skip
_TURNS = 10_000


class RefusedError(Exception):
    """The inputs contradict the shapes that the module declares."""


def run_dynamic(module: ir.IRModule, params: Mapping[str, Array], inputs: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of ``main`` for inputs and parameters by name."""
    given = [inputs[param.name] if param.name in inputs else params[param.name] for param in module.main.params]
    result = _Run(module).function(module.main, given)
    return [*result] if isinstance(result, tuple) else [result]


class _Again:
    """A tail call, which the caller of the function makes, so that loops use no stack."""

    def __init__(self, function: ir.Function, args: Sequence[Value]) -> None:
        self.function = function
        self.args = args


class _Run:
    def __init__(self, module: ir.IRModule) -> None:
        self.module = module

    def function(self, function: ir.Function, args: Sequence[Value]) -> Value:
        for _ in range(_TURNS):
            found = _Frame(self, function, args).result()
            if not isinstance(found, _Again):
                return found
            function, args = found.function, found.args
        raise AssertionError("a loop without an end")


class _Frame:
    """One call of a function: its values by expression, and its symbols."""

    def __init__(self, run: _Run, function: ir.Function, args: Sequence[Value]) -> None:
        self.run, self.function = run, function
        self.values: dict[ir.Expr, Value] = dict(zip(function.params, args, strict=True))
        self.bound: Bound = {}
        for param, value in zip(function.params, args, strict=True):
            self._bind(param.type, value)
        for param, value in zip(function.params, args, strict=True):
            self._check(param.type, value)
        fields = function.body.fields if isinstance(function.body, ir.Tuple) else ()
        count = len(function.defines)
        self.definitions = dict(zip(function.defines, fields[len(fields) - count :], strict=True)) if count else {}
        self.sources = self._sources()

    def result(self) -> Value:
        body = self.function.body
        if self.function.defines:
            assert isinstance(body, ir.Tuple)
            for symbol in self.function.defines:
                self.symbol(symbol)  # a definition that nothing mentions is still checked
            results = tuple(self.value(item) for item in body.fields[: -len(self.function.defines)])
            return results if len(results) > 1 else results[0]
        if isinstance(body, ir.If):
            target = body.then if self.value(body.condition).all() else body.otherwise
            return _Again(self.run.module.functions[target.name], [self.value(arg) for arg in body.args])
        if isinstance(body, ir.Call) and isinstance(body.op, ir.GlobalVar):
            return _Again(self.run.module.functions[body.op.name], [self.value(arg) for arg in body.args])
        return self.value(body)

    def _sources(self) -> dict[Symbol, ir.Expr]:
        found: dict[Symbol, ir.Expr] = {}
        for expr in post_order(self.function.body):
            if _gives_extents(expr):
                for extent in _extents(expr.type):
                    if isinstance(extent, Dim) and extent.symbol is not None:
                        found.setdefault(extent.symbol, expr)
        return found

    def symbol(self, symbol: Symbol) -> int:
        if symbol not in self.bound:
            if symbol in self.definitions:
                self.bound[symbol] = int(self.value(self.definitions[symbol]).reshape(()))
            else:
                assert symbol in self.sources, f"{symbol} comes from nowhere"
                self.value(self.sources[symbol])
        found = self.bound[symbol]
        if not symbol.low <= found <= symbol.high:
            raise RefusedError(f"{symbol} is {found}, not in {symbol.low}..{symbol.high}")
        return found

    def number(self, extent: Any) -> Any:
        if isinstance(extent, tuple):
            return tuple(map(self.number, extent))
        if not isinstance(extent, Dim):
            return extent
        leaf = lambda item: self.symbol(item) if isinstance(item, Symbol) else item  # noqa: E731
        found = walked(extent, leaf, lambda name, a, b: _OPERATIONS[name](a, b))
        assert found == substituted(extent, {item: self.symbol(item) for item in extent.symbols})
        return found

    def value(self, wanted: ir.Expr) -> Value:
        stack = [wanted]
        while stack:
            expr = stack[-1]
            missing = [child for child in children(expr) if child not in self.values] if expr not in self.values else []
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if expr not in self.values:
                self.values[expr] = self._computed(expr)
                if not isinstance(expr, ir.GlobalVar):
                    self._bind(expr.type, self.values[expr]) if _gives_extents(expr) else None
                    self._check(expr.type, self.values[expr])
        return self.values[wanted]

    def _computed(self, expr: ir.Expr) -> Value:
        args = [self.values[child] for child in children(expr)]
        if isinstance(expr, ir.Constant):
            return expr.data
        if isinstance(expr, ir.Tuple):
            return tuple(args)
        if isinstance(expr, ir.TupleGetItem):
            return args[0][expr.index]
        if isinstance(expr, ir.If):
            target = expr.then if args[0].all() else expr.otherwise
            return self.run.function(self.run.module.functions[target.name], args[1:])
        assert isinstance(expr, ir.Call)
        if isinstance(expr.op, ir.GlobalVar):
            return self.run.function(self.run.module.functions[expr.op.name], args)
        assert isinstance(expr.op, Operator)
        if expr.op.name.startswith("list_"):
            return _of_list(expr.op.name, args, expr)
        attrs = {name: self.number(value) for name, value in expr.attrs.items()}
        return _evaluated(expr.op, args, attrs)

    def _bind(self, kind: ir.Type, value: Value) -> None:
        if isinstance(kind, ir.TupleType):
            for item, part in zip(kind.fields, value, strict=True):
                self._bind(item, part)
        elif isinstance(kind, ir.TensorType):
            if len(kind.shape) != value.ndim:
                raise RefusedError(f"{value.shape} is no {kind}")
            for extent, size in zip(kind.shape, value.shape, strict=True):
                count, symbol = (extent.multiple if isinstance(extent, Dim) else None) or (1, None)
                if symbol is not None and symbol not in self.bound:
                    self.bound[symbol] = size // count

    def _check(self, kind: ir.Type, value: Value) -> None:
        if isinstance(kind, ir.TupleType):
            for item, part in zip(kind.fields, value, strict=True):
                self._check(item, part)
        elif isinstance(kind, ir.TensorType):
            assert value.dtype == dtypes.to_numpy(kind.dtype), f"{value.dtype} is no {kind}"
            if self.number(kind.shape) != value.shape:
                raise RefusedError(f"{value.shape} is no {kind} with {self.bound}")


def _gives_extents(expr: ir.Expr) -> bool:
    if isinstance(expr, ir.Call):
        return isinstance(expr.op, ir.GlobalVar) or (ir.op_name(expr) or "").startswith("list_")
    return isinstance(expr, ir.If)


def _extents(kind: ir.Type) -> list[Any]:
    if isinstance(kind, ir.TupleType):
        return [extent for item in kind.fields for extent in _extents(item)]
    return list(kind.shape) if isinstance(kind, ir.TensorType) else []


def _of_list(name: str, args: Sequence[Value], call: ir.Call) -> Value:
    if name == "list_new":
        return []
    if name == "list_split":
        return _parts(*args, **call.attrs)
    if name == "list_from":
        return _listed(*args, call.attrs["dtype"])
    items, rest = list(args[0]), args[1:]
    if name == "list_require" and not rest[0].all():
        raise RefusedError(call.attrs["message"])
    if name in ("list_as", "list_require"):
        return items
    if name == "list_extents":
        rank: Any = call.type.shape[1]  # type: ignore[union-attr]  # a tensor
        rows = [(*item.shape, *[-1] * (rank - item.ndim)) for item in items]
        return np.array(rows, np.int64).reshape(len(items), rank)
    if name == "list_bytes":
        rows = [np.frombuffer(item.tobytes() + bytes(-item.nbytes % 64), np.uint8) for item in items]
        return np.concatenate([np.zeros(0, np.uint8), *rows])
    if name == "list_append":
        return [*items, rest[0]]
    if name == "list_length":
        return np.asarray(len(items), np.int64)
    kind = call.type
    if name in ("list_stack", "list_concat"):
        assert isinstance(kind, ir.TensorType)
        if not items:
            return np.zeros([extent if isinstance(extent, int) else 0 for extent in kind.shape], kind.dtype)
        return np.stack(items) if name == "list_stack" else np.concatenate(items, call.attrs["axis"])
    at = int(rest[0].reshape(()))
    limit = len(items) + (name == "list_insert")
    if not -len(items) <= at < limit:
        raise RefusedError(f"position {at} is outside of {len(items)}")
    at = at + len(items) if at < 0 else at
    if name == "list_get":
        return items[at]
    return [*items[:at], *([rest[1]] if name == "list_insert" else []), *items[at + (name == "list_erase") :]]


def _parts(x: Array, sizes: Array, *, axis: int, keepdims: bool, **_: Any) -> list[Array]:
    if sizes.sum() != x.shape[axis] or (sizes < 0).any():
        raise RefusedError(f"sizes {sizes} of {x.shape[axis]}")
    parts = np.split(x, np.cumsum(sizes)[:-1], axis)
    return parts if keepdims else [part.squeeze(axis) for part in parts]


def _listed(extents: Array, data: Array, dtype: str) -> list[Array]:
    found, start = [], 0
    for shape in extents.tolist():
        size = int(np.prod(shape)) * dtypes.to_numpy(dtype).itemsize
        found.append(np.frombuffer(data[start : start + size].tobytes(), dtypes.to_numpy(dtype)).reshape(shape))
        start += -(-size // 64) * 64
    return found


def _evaluated(op: Operator, args: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
    """Return the result of an operator for arrays, by its evaluation rule."""
    given = [_constants(arg) for arg in args]
    call = ir.call(op.name, given, attrs)
    assert not symbols_of(_extents(call.type))
    kind = call.type
    if isinstance(kind, ir.TensorType) and kind.size == 0:
        return np.zeros(kind.shape, dtypes.to_numpy(kind.dtype))
    found = evaluate(call) if op.kind is not Kind.OPAQUE else None
    if found is not None:
        return found
    return _compiled(call, given)


def _constants(value: Value) -> ir.Expr:
    return ir.Tuple(tuple(map(_constants, value))) if isinstance(value, tuple) else ir.Constant(value)


def _compiled(call: ir.Call, given: Sequence[ir.Expr]) -> Value:
    """Return the result of compiled code, for a call that is too slow to interpret or has no evaluation rule."""
    flat = [part for arg in given for part in (arg.fields if isinstance(arg, ir.Tuple) else (arg,))]
    arrays = [part.data for part in flat if isinstance(part, ir.Constant)]
    kinds = [ir.tensor_type(part) for part in flat]
    function = _library(call.op.name if isinstance(call.op, Operator) else "", tuple(kinds), _Key(call))
    return function(arrays)


class _Key:
    """A call that equals others with the same argument types and attributes."""

    def __init__(self, call: ir.Call) -> None:
        self.call = call
        self.text = f"{[str(arg.type) for arg in call.args]} {dict(call.attrs)}"

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.text == other.text


@cache
def _library(_name: str, kinds: tuple[ir.TensorType, ...], key: _Key) -> Any:
    variables = [ir.Var(f"x{index}", kind) for index, kind in enumerate(kinds)]
    source = iter(variables)
    args = [
        ir.Tuple(tuple(next(source) for _ in arg.fields)) if isinstance(arg, ir.Tuple) else next(source)
        for arg in key.call.args
    ]
    assert isinstance(key.call.op, Operator)
    body = ir.call(key.call.op.name, args, key.call.attrs)
    module = ir.IRModule({"main": ir.Function(tuple(variables), body)})
    runner = loaded_by_llvm(module, {})

    def run(arrays: Sequence[Array]) -> Value:
        found = runner.run({var.name: array for var, array in zip(variables, arrays, strict=True)})
        results = tuple(found.values())
        return results if isinstance(body.type, ir.TupleType) else results[0]

    return run
