"""Branches and loops at run time, as functions of the module.

A loop is ``@loop``, which calls either ``@loop_turn``, one iteration that calls ``@loop`` again, or ``@loop_done``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from mlfc.errors import UnsupportedError
from mlfc.frontend.dynamic import NOTHING, Dynamic, Frame, Needs, result_type
from mlfc.ops.lists import fits
from mlfc.relay import ir
from mlfc.relay.ir import (
    Call,
    Constant,
    Expr,
    FuncType,
    GlobalVar,
    If,
    ListType,
    Span,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
)
from mlfc.relay.op import Trait
from mlfc.relay.visitor import children
from mlfc.support.dims import LARGEST, Dim, bounds

_ROUNDS = 16  # attempts at generalizing the types of a loop's states
_FLAG, _NUMBER = TensorType((), "bool"), TensorType((), "int64")


@dataclass
class Body:
    """The imported body of a function."""

    frame: Frame
    results: list[Expr]


# Values and their types


def flat(value: Expr) -> list[Expr]:
    """Return the tensors and lists that make up a value."""
    if value is NOTHING:
        return []
    return list(value.fields) if isinstance(value, Tuple) else [value]


def _parts(values: Sequence[Expr], kinds: Sequence[Type], span: Span) -> list[Expr]:
    """Return the tensors and lists that make up values after coercion to types."""
    return [part for value, kind in zip(values, kinds, strict=True) for part in flat(coerced(value, kind, span))]


def flat_types(kind: Type) -> list[Type]:
    """Return the types of the tensors and lists that make up a value of a type."""
    if kind == NOTHING.type:
        return []
    return list(kind.fields) if isinstance(kind, TupleType) else [kind]


def built(kind: Type, parts: Iterator[Expr]) -> Expr:
    """Return a value of a type, assembled from the next parts."""
    if kind == NOTHING.type:
        return NOTHING
    if isinstance(kind, TupleType):
        return Tuple(tuple(next(parts) for _ in kind.fields))
    return next(parts)


class Joiner:
    """Type join for the two possible values of a branch or loop state."""

    def __init__(self, dynamic: Dynamic, name: str, frames: Sequence[Frame]) -> None:
        self.dynamic = dynamic
        self.name = name
        self.own = {symbol for frame in frames for symbol in (*frame.defines, *frame.sources)}

    def joined(self, a: Type, b: Type) -> Type:
        """Return a type that includes both types; raise UnsupportedError if none exists."""
        if is_optional(a) or is_optional(b):
            return self._optional(a, b)
        if isinstance(a, TensorType) and isinstance(b, TensorType):
            return self._tensor(a, b, self._between)
        if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.fields) == len(b.fields):
            return TupleType(tuple(self.joined(one, other) for one, other in zip(a.fields, b.fields, strict=True)))
        if isinstance(a, (TupleType, ListType)) and isinstance(b, (TupleType, ListType)):
            return self.list_of((a, b))
        raise self._refusal(a, b)

    def _optional(self, a: Type, b: Type) -> Type:
        """Return the type of an optional: of a tensor, or of a sequence."""
        kinds = [kind for kind in map(value_type, (a, b)) if kind is not None]
        if not kinds:
            return NOTHING.type
        if all(isinstance(kind, TensorType) for kind in kinds):
            return TupleType((self.list_of([_as_sequence(kind) for kind in (a, b)]),))
        if any(isinstance(kind, TensorType) for kind in kinds):
            raise self._refusal(a, b)
        return TupleType((_FLAG, self.list_of(kinds)))

    def list_of(self, kinds: Sequence[Type]) -> ListType:
        """Return the type of a list that can contain the elements of sequences of some types."""
        elements = [item for kind in kinds if isinstance(kind, (TupleType, ListType)) for item in _elements(kind)]
        if not elements:
            raise _refused(
                self.name,
                "an empty sequence whose elements have an unknown rank is not supported",
                "Start with a sequence that has an element",
            )
        found: dict[int, TensorType] = {}
        for element in elements:
            known = found.setdefault(len(element.shape), element)
            if (len(found) > 1 and not self.dynamic.mixes) or element.dtype != elements[0].dtype:
                raise self._refusal(elements[0], element)
            found[len(element.shape)] = self._tensor(known, element, self._varying)
        first, *others = (found[rank] for rank in sorted(found))
        return ListType(first, tuple(others))

    def _tensor(self, a: TensorType, b: TensorType, extent: Callable[[Any, Any], Any]) -> TensorType:
        if a.dtype != b.dtype or len(a.shape) != len(b.shape):
            raise self._refusal(a, b)
        return TensorType(tuple(map(extent, a.shape, b.shape)), a.dtype)

    def _refusal(self, a: Type, b: Type) -> UnsupportedError:
        cause = f"a value of type {a} or {b}, depending on runtime values, is not supported"
        return _refused(self.name, cause, "Export the model so that both have the same dtype and rank")

    def _is_own(self, extent: Any) -> bool:
        return isinstance(extent, Dim) and not self.own.isdisjoint(extent.symbols)

    def _between(self, a: Any, b: Any) -> Any:
        if a == b and not self._is_own(a):
            return a
        (low, high), (least, most) = bounds(a), bounds(b)
        return self.dynamic.symbol(self.name, max(0, min(low, least)), min(LARGEST, max(high, most))).dim

    def _varying(self, a: Any, b: Any) -> Any:
        if self.dynamic.is_varying(a):
            return a
        if self.dynamic.is_varying(b):
            return b
        return a if a == b and not self._is_own(a) else self.dynamic.varying(self.name)

    def opened(self, kind: Type, new: Type) -> Type:
        """Return a state's type widened to include another value: sizes that change become symbols of the state."""
        if is_optional(kind) or is_optional(new):
            own, value = value_type(kind), value_type(new)
            mixes = value is not None and isinstance(own, TensorType) != isinstance(value, TensorType)
            if own is None or not is_optional(kind) or mixes:
                return self.joined(kind, new)
            if value is None:
                return kind
            assert isinstance(kind, TupleType)
            wider = ListType(value) if isinstance(value, TensorType) else value
            return TupleType((*kind.fields[:-1], self.opened(kind.fields[-1], wider)))
        if isinstance(kind, TensorType) and isinstance(new, TensorType):
            if kind.dtype != new.dtype or len(kind.shape) != len(new.shape):
                return self.joined(kind, new)  # raises
            return TensorType(tuple(map(self._changing, kind.shape, new.shape)), kind.dtype)
        if isinstance(kind, TupleType) and isinstance(new, TupleType) and len(kind.fields) == len(new.fields):
            return TupleType(tuple(map(self.opened, kind.fields, new.fields)))
        if not isinstance(kind, ListType) or not isinstance(new, (TupleType, ListType)):
            return self.joined(kind, new)
        return kind if all(fits(kind, element) for element in _elements(new)) else self.joined(kind, new)

    def _changing(self, old: Any, new: Any) -> Any:
        if self.dynamic.is_state(old):
            return old if bounds(new)[0] >= old.symbol.low else self.dynamic.state(self.name, 0)
        least = max(0, min(bounds(old)[0], bounds(new)[0]))
        return old if old == new else self.dynamic.state(self.name, least)


def _refused(name: str, cause: str, next_step: str) -> UnsupportedError:
    return UnsupportedError(cause, place=f"node '{name}'", next_step=next_step)


def _elements(kind: TupleType | ListType) -> list[TensorType]:
    fields = kind.fields if isinstance(kind, TupleType) else kind.elements
    return [field for field in fields if isinstance(field, TensorType)]


def is_optional(kind: Type) -> bool:
    """Return whether a type is an optional that is empty, or whose presence is only known at run time.

    An optional tensor is a list of at most one element, an optional sequence is a bool and a list. An optional that is
    known to have a value is represented by that value.
    """
    return isinstance(kind, TupleType) and (
        kind == NOTHING.type or any(isinstance(field, ListType) for field in kind.fields)
    )


def value_type(kind: Type) -> Type | None:
    """Return the type of an optional's value, None for an empty optional, and other types unchanged."""
    if kind == NOTHING.type:
        return None
    if not is_optional(kind):
        return kind
    assert isinstance(kind, TupleType)
    items = kind.fields[-1]
    assert isinstance(items, ListType)
    return items if len(kind.fields) == 2 else items.element


def _as_sequence(kind: Type) -> TupleType | ListType:
    """Return the type of the sequence of at most one element that represents an optional tensor."""
    if kind == NOTHING.type:
        return TupleType(())
    items = kind.fields[-1] if isinstance(kind, TupleType) and is_optional(kind) else TupleType((kind,))
    assert isinstance(items, (TupleType, ListType))
    return items


def coerced(value: Expr, kind: Type, span: Span) -> Expr:
    """Convert a value to a type: a sequence of known length to a list, a value to an optional."""
    if is_optional(kind) and kind != NOTHING.type:
        assert isinstance(kind, TupleType)
        return _as_optional(value, kind, span)
    if not isinstance(kind, ListType):
        return value
    if not isinstance(value, Tuple):
        others = tuple(item.shape for item in kind.others)
        attrs = {"shape": kind.element.shape, "others": others}
        return value if value.type == kind else ir.call("list_as", [value], attrs, span=span)
    found = _new_list(kind, span)
    for field in value.fields:
        found = ir.call("list_append", [found, field], span=span)
    return found


def _new_list(kind: Type, span: Span) -> Expr:
    assert isinstance(kind, ListType)
    attrs = {"shape": kind.element.shape, "others": tuple(item.shape for item in kind.others)}
    return ir.call("list_new", [], attrs, dtype=kind.element.dtype, span=span)


def _as_optional(value: Expr, kind: TupleType, span: Span) -> Expr:
    items = kind.fields[-1]
    if is_optional(value.type) and value is not NOTHING:
        assert isinstance(value, Tuple)
        return Tuple((*value.fields[:-1], coerced(value.fields[-1], items, span)))
    has_value = value is not NOTHING
    if len(kind.fields) == 1:
        value = Tuple((value,)) if has_value else Tuple(())
        return Tuple((coerced(value, items, span),))
    found = coerced(value, items, span) if has_value else _new_list(items, span)
    return Tuple((ir.const(has_value, "bool", span=span), found))


def as_list(dynamic: Dynamic, value: Expr, name: str, *others: Type) -> Expr:
    """Convert a sequence to a list whose element types include `others`."""
    kind = Joiner(dynamic, name, []).list_of([value.type, TupleType(others)])
    return coerced(value, kind, Span((name,)))


def taken_out(dynamic: Dynamic, items: Expr, position: Expr, name: str) -> Expr:
    """Return the tensor at a position of a list; sizes that differ between its elements become new symbols.

    If the elements differ in rank, the ranks are tried one after the other, and the choice is checked at run time.
    """
    assert isinstance(items.type, ListType)
    *tried, last = items.type.elements
    ranks = (kind for kind in tried if dynamic.choose(f"{name} with {len(kind.shape)} dimensions"))
    shape = element_shape(dynamic, next(ranks, last), name)
    found = ir.call("list_get", [items, position], shape=shape, span=Span((name,)))
    dynamic.noted(found, shape)
    return found


def element_shape(dynamic: Dynamic, kind: TensorType, name: str) -> tuple[Any, ...]:
    """Return the shape of an element of a list, with new symbols for sizes that differ between elements."""
    return tuple(
        dynamic.symbol(name, *extent.bounds).dim if dynamic.is_varying(extent) else extent for extent in kind.shape
    )


# Branches


def is_cheap(bodies: Sequence[Body], outer: AbstractSet[Expr], limit: int = 16) -> bool:
    """Return whether it is cheap to compute both branches: few operators, without products or control flow."""
    for body in bodies:
        if body.frame.defines or body.frame.sources or body.frame.required:
            return False
        seen: set[Expr] = set(outer)
        waiting, count = [part for result in body.results for part in flat(result)], 0
        if any(isinstance(part.type, ListType) for part in waiting):
            return False
        while waiting:
            expr = waiting.pop()
            if expr in seen or isinstance(expr, (Var, Constant)):
                continue
            seen.add(expr)
            operator = expr.op if isinstance(expr, Call) else None
            if isinstance(expr, If) or isinstance(operator, GlobalVar) or isinstance(expr.type, ListType):
                return False
            count += isinstance(expr, Call)
            if count > limit or getattr(operator, "macs", None) is not None:
                return False
            waiting.extend(children(expr))
    return True


def branched(
    dynamic: Dynamic,
    condition: Expr,
    bodies: Sequence[Body],
    outer: AbstractSet[Expr],
    name: str,
    tensors: Sequence[str],
) -> list[Expr]:
    """Return the results of the first body if a condition is true, else those of the second; only one is computed."""
    span = Span((name,))
    joiner = Joiner(dynamic, name, [body.frame for body in bodies])
    one, other = (body.results for body in bodies)
    kinds = [joiner.joined(a.type, b.type) for a, b in zip(one, other, strict=True)]
    results = [_parts(body.results, kinds, span) for body in bodies]
    needs = [dynamic.needs(body.frame, (), parts, outer) for body, parts in zip(bodies, results, strict=True)]
    captured = dynamic.completed(needs)
    functions = [
        dynamic.close(dynamic.name(f"{name}_{which}"), (), parts, captured, own.defines)
        for which, parts, own in zip(("then", "else"), results, needs, strict=True)
    ]
    parts = [part for kind in kinds for part in flat_types(kind)]
    if not parts:
        return [built(kind, iter(())) for kind in kinds]
    titles = tensors if len(parts) == len(kinds) else [""] * len(parts)
    flag = ir.call("reshape", [condition], newshape=(), span=span) if ir.tensor_type(condition).shape else condition
    alone = Span((name,), titles[0] or None) if len(parts) == 1 else span
    found = If(flag, functions[0], functions[1], tuple(captured), result_type(parts), alone)
    return unpacked(dynamic, found, kinds, titles)


def unpacked(dynamic: Dynamic, found: If | Call, kinds: Sequence[Type], titles: Sequence[str]) -> list[Expr]:
    """Return the results of an `If` or a call, with tensor names; their dynamic sizes are read from them."""
    parts: list[Expr] = [found]
    if isinstance(found.type, TupleType):
        spans = [Span(found.span.nodes, title or None) for title in titles]
        parts = [TupleGetItem(found, index, span) for index, span in enumerate(spans)]
    for part in parts:
        if isinstance(part.type, TensorType):
            dynamic.noted(part, part.type.shape)
    source = iter(parts)
    return [built(kind, source) for kind in kinds]


# Loops


@dataclass
class Loop:
    """Specification of a loop."""

    name: str
    initial: list[Expr]  # states before the first iteration
    condition: Expr | None  # a bool: whether the first iteration runs; None for always
    limit: Expr | None  # int64: the maximum number of iterations; None for no limit
    # from (number, condition, states) of an iteration to its next condition or None, its states, and its rows
    turn: Callable[[Expr, Expr, list[Expr]], tuple[Expr | None, list[Expr], list[Expr]]]
    outer: AbstractSet[Expr]  # expressions that iterations may read from enclosing functions


@dataclass
class _Turn:
    """An iteration that was imported with given types of its states."""

    frame: Frame
    params: list[Var]  # condition, iteration number, states
    given: list[Expr]  # the states, assembled from parameters
    go: Expr | None
    states: list[Expr]
    rows: list[Expr]


def looped(dynamic: Dynamic, loop: Loop) -> tuple[list[Expr], list[Expr], Expr]:
    """Return the final states of a loop, for each row the list of its values, and the number of iterations."""
    span = Span((loop.name,))
    kinds, turn = _general(dynamic, loop)
    pairs = enumerate((flat(state), flat(value)) for state, value in zip(turn.states, turn.given, strict=True))
    if constant := {index for index, (a, b) in pairs if len(a) == len(b) and all(map(operator.is_, a, b))}:
        changed, collected, ran = looped(dynamic, _without(loop, constant))
        kept = iter(changed)
        return [loop.initial[i] if i in constant else next(kept) for i in range(len(kinds))], collected, ran
    joiner = Joiner(dynamic, loop.name, [turn.frame])
    rows = []
    for row in turn.rows:
        if not isinstance(row.type, TensorType):
            cause = f"a scan output of type {row.type} is not supported"
            raise _refused(loop.name, cause, "Return one tensor per iteration")
        rows.append(joiner.list_of([ListType(row.type)]))
    lists = [Var(f"rows_{index}", row) for index, row in enumerate(rows)]
    params = [*turn.params, *lists]
    count = ir.call("add", [turn.params[1], ir.const(1, "int64")], span=span)
    more = None if loop.limit is None else ir.call("less", [count, loop.limit], span=span)
    go = _both(turn.go, more, span)
    appended = [ir.call("list_append", [var, row], span=span) for var, row in zip(lists, turn.rows, strict=True)]
    after = [go, count, *_parts(turn.states, kinds, span), *appended]
    own = dynamic.needs(turn.frame, params, after, loop.outer)
    captured = dynamic.completed([own], params)
    base = dynamic.name(loop.name)
    if own.defines:
        after = _apart(dynamic, f"{base}_body", params, after, captured, own, span)
    parts = [part for kind in kinds for part in flat_types(kind)]
    results = TupleType((*(_result(dynamic, loop.name, part) for part in parts), *rows, _NUMBER, _FLAG))
    itself = GlobalVar(base, FuncType(tuple(item.type for item in (*params, *captured)), results))
    again = ir.call_function(itself, [*after, *captured], span=span)
    turn_function = dynamic.close(dynamic.name(f"{base}_turn"), params, [again], captured)
    done = dynamic.close(dynamic.name(f"{base}_done"), params, [*params[2:], *params[1::-1]], captured)
    choice = If(params[0], turn_function, done, (*params, *captured), results, span)
    dynamic.close(base, params, [choice], captured)
    some = None if loop.limit is None else ir.call("greater", [loop.limit, ir.const(0, "int64")], span=span)
    start, empty = _both(loop.condition, some, span), [_new_list(row, span) for row in rows]
    given = [start, ir.const(0, "int64"), *_parts(loop.initial, kinds, span), *empty, *captured]
    call = ir.call_function(itself, given, span=span)
    found = unpacked(dynamic, call, [*kinds, *rows, _NUMBER, _FLAG], [""] * len(results.fields))
    return found[: len(kinds)], found[len(kinds) : -2], found[-2]


def _without(loop: Loop, constant: AbstractSet[int]) -> Loop:
    """Return a loop without its constant states; iterations read their initial values instead."""
    kept = [value for index, value in enumerate(loop.initial) if index not in constant]
    fixed = [part for index in constant for part in flat(loop.initial[index])]

    def turn(number: Expr, go: Expr, carried: list[Expr]) -> tuple[Expr | None, list[Expr], list[Expr]]:
        given = iter(carried)
        states = [loop.initial[i] if i in constant else next(given) for i in range(len(loop.initial))]
        further, after, rows = loop.turn(number, go, states)
        return further, [value for index, value in enumerate(after) if index not in constant], rows

    return replace(loop, initial=kept, turn=turn, outer=loop.outer | {part for part in fixed if not is_free(part)})


def is_free(expr: Expr) -> bool:
    """Return whether an expression may be duplicated in any function."""
    return isinstance(expr, Constant) or ir.has_trait(expr, Trait.SHAPE)


def stacked(dynamic: Dynamic, rows: Expr, count: Any, name: str) -> Expr:
    """Stack a list of `count` rows into one tensor."""
    assert isinstance(rows.type, ListType)
    shape = (count, *element_shape(dynamic, rows.type.element, name))
    found = ir.call("list_stack", [rows], shape=shape, span=Span((name,)))
    dynamic.noted(found, shape)
    return found


def _apart(
    dynamic: Dynamic, name: str, params: Sequence[Var], after: Sequence[Expr], captured: Sequence[Expr], own: Needs,
    span: Span,
) -> list[Expr]:  # fmt: skip
    """Move the body of an iteration into its own function, as the tail call of a loop cannot define symbols."""
    function = dynamic.close(dynamic.name(name), params, after, captured, own.defines)
    inner = {symbol for symbol, _ in own.defines}

    def outside(kind: Type) -> Type:
        if not isinstance(kind, TensorType):
            return kind
        is_inner = [isinstance(extent, Dim) and not inner.isdisjoint(extent.symbols) for extent in kind.shape]
        shape = [
            dynamic.symbol(name, max(0, bounds(extent)[0]), min(LARGEST, bounds(extent)[1])).dim if is_new else extent
            for extent, is_new in zip(kind.shape, is_inner, strict=True)
        ]
        return TensorType(tuple(shape), kind.dtype)

    result = TupleType(tuple(outside(item.type) for item in after))
    call = ir.call_function(function, [*params, *captured], type=result, span=span)
    return [TupleGetItem(call, index, span) for index in range(len(after))]


def _both(go: Expr | None, more: Expr | None, span: Span) -> Expr:
    """Return whether two conditions are true, each of which may be missing."""
    if go is None or more is None:
        return go or more or ir.const(True, "bool")
    return ir.call("logical_and", [go, more], span=span)


def _result(dynamic: Dynamic, name: str, part: Type) -> Type:
    """Return the type of a state after the loop, where sizes that change are new symbols."""
    if not isinstance(part, TensorType):
        return part
    title = f"{name}_result"
    shape = (dynamic.symbol(title, *extent.bounds).dim if dynamic.is_state(extent) else extent for extent in part.shape)
    return TensorType(tuple(shape), part.dtype)


def _general(dynamic: Dynamic, loop: Loop) -> tuple[list[Type], _Turn]:
    """Return the least general types that all iterations of a loop preserve, and an iteration imported with these."""
    kinds: list[Type] = dynamic.patterns.get((loop.name, len(loop.initial))) or [value.type for value in loop.initial]
    joiner = Joiner(dynamic, loop.name, [])
    kinds = [joiner.opened(kind, value.type) for kind, value in zip(kinds, loop.initial, strict=True)]
    for _ in range(_ROUNDS):
        turn = _imported(dynamic, loop, kinds)
        joiner = Joiner(dynamic, loop.name, [turn.frame])
        wider = [joiner.opened(kind, value.type) for kind, value in zip(kinds, turn.states, strict=True)]
        if wider == kinds:
            dynamic.patterns[loop.name, len(kinds)] = kinds
            return kinds, turn
        kinds = wider
    cause = f"states whose types still change after {_ROUNDS} iterations are not supported"
    raise _refused(loop.name, cause, "Export the model with states of one dtype and rank")


def _imported(dynamic: Dynamic, loop: Loop, kinds: Sequence[Type]) -> _Turn:
    parts = [part for kind in kinds for part in flat_types(kind)]
    with dynamic.function() as frame:
        params = [Var("go", _FLAG), Var("turn", _NUMBER)]
        for index, part in enumerate(parts):
            assert isinstance(part, (TensorType, ListType))
            params.append(Var(f"state_{index}", part))
        dynamic.give(params)
        source: Iterator[Expr] = iter(params[2:])
        given = [built(kind, source) for kind in kinds]
        go, states, rows = loop.turn(params[1], params[0], given)
    return _Turn(frame, params, given, go, states, rows)
