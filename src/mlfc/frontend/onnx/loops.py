"""ONNX's loops. Their graph is imported once per iteration, or only once if the loop runs at run time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import onnx

from mlfc.errors import ModelError, UnsupportedError
from mlfc.frontend.control import Loop, as_list, is_free, looped, stacked, taken_out
from mlfc.frontend.dynamic import Dynamic
from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.table import UNROLL, importer
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, ListType, Span, TensorType, Tuple
from mlfc.support import cost
from mlfc.support.dim_estimates import typical
from mlfc.support.dims import Dim

# limits of unrolled loops: iterations, and nodes of all iterations
_FEW_TURNS, _FEW_NODES = 32, 256


def _is_long(turns: Any, nodes: int) -> bool:
    return isinstance(turns, Dim) or turns > _FEW_TURNS or turns * nodes > _FEW_NODES


def is_long_scan(proto: onnx.NodeProto, values: Sequence[Expr | None], graph: onnx.GraphProto) -> bool:
    """Return whether a Scan has many iterations, or their number is only known at run time."""
    last = values[-1]
    axes = next((list(item.ints) for item in proto.attribute if item.name == "scan_input_axes"), [])
    axis, shape = axes[-1] if axes else 0, last.type.shape if last and isinstance(last.type, TensorType) else ()
    if not -len(shape) <= axis < len(shape):
        return False
    return _is_long(shape[axis], len(graph.node)) or any(value is None for value in values)


@dataclass(eq=False)
class Loops:
    """A loop node with its inputs."""

    dynamic: Dynamic | None  # None if shapes are static: all iterations are unrolled then
    proto: onnx.NodeProto
    values: Sequence[Expr | None]
    graph: onnx.GraphProto
    name: str
    outer: AbstractSet[Expr]
    imported: Callable[[Sequence[Expr]], list[Expr]]  # imports the graph for given arguments

    @property
    def _span(self) -> Span:
        return Span((self.name,))

    @property
    def _dynamic(self) -> Dynamic:
        assert self.dynamic is not None  # `loop` returns earlier otherwise
        return self.dynamic

    def _call(self, operator: str, *args: Expr, **attrs: Any) -> Call:
        return ir.call(operator, args, attrs, span=self._span)

    def _wrong(self, cause: str) -> ModelError:
        return ModelError(f"{self.proto.op_type}: {cause}", place=f"node '{self.name}'")

    # Loop

    def loop(self) -> list[Expr]:
        """Return the results of a Loop."""
        given = list(self.values) + [None] * max(0, 2 - len(self.values))
        limit, condition = self._scalar(given[0], "int64"), self._scalar(given[1], "bool")
        states = [value for value in given[2:] if value is not None]
        if len(states) < len(given) - 2 or len(self.graph.input) != len(states) + 2:
            raise self._wrong(f"a graph of {len(self.graph.input)} inputs does not fit {len(given) - 2} states")
        if len(self.graph.output) - 1 < len(states):
            raise self._wrong(f"a graph of {len(self.graph.output)} outputs does not fit {len(states)} states")
        never = isinstance(condition, Constant) and not condition.data.any()
        if self.dynamic is None:
            # fully unrolled; the limit on operators bounds it
            found = None
            if isinstance(limit, Constant):
                found = self._unrolled(0 if never else int(limit.data), states, condition)
            if found is None or len(found) < len(self.proto.output):
                cause = "a Loop whose number of iterations is not a positive constant is not supported here"
                raise UnsupportedError(cause, place=f"node '{self.name}'", next_step=UNROLL)
            return found
        turns = None if limit is None else self.dynamic.known(limit)
        count = 0 if never else None if turns is None else turns.reshape(-1)[0]
        if count is not None and not _is_long(count, len(self.graph.node)) and count > 0:
            found = self._unrolled(int(count), states, condition)
            if found is not None:
                return found
        return self._while(limit, condition, states, count)

    def _scalar(self, value: Expr | None, dtype: str) -> Expr | None:
        if value is None:
            return None
        kind = value.type
        if not isinstance(kind, TensorType) or kind.dtype != dtype or kind.size != 1:
            raise self._wrong(f"expected one {dtype}, got {kind}")
        return self._reshaped(value, ())

    def _reshaped(self, value: Expr, shape: tuple[int, ...]) -> Expr:
        if isinstance(value, Constant):
            return Constant(value.data.reshape(shape), None, self._span)
        return self._call("reshape", value, newshape=shape) if shape_of(value) != shape else value

    def _turn(self, number: Expr, condition: Expr, states: Sequence[Expr]) -> tuple[Expr, list[Expr], list[Expr]]:
        """Import the body of a Loop once; return the next condition, the states, and this iteration's scan outputs."""
        given = [number, condition]
        for index, item in enumerate(self.graph.input[:2]):  # condition and iteration number may have shape (1,)
            declared = item.type.tensor_type
            if declared.HasField("shape") and len(declared.shape.dim) == 1:
                given[index] = self._reshaped(given[index], (1,))
        results = self.imported([*given, *states])
        return results[0], results[1 : len(states) + 1], results[len(states) + 1 :]

    def _unrolled(self, turns: int, states: list[Expr], condition: Expr | None) -> list[Expr] | None:
        """Import each iteration; return None if the number of iterations is only known at run time."""
        if condition is not None and not isinstance(condition, Constant):
            return None
        collected = []
        for turn in range(turns):
            cost.require("operators", len(self.graph.node), self.name)
            number = ir.const(turn, "int64", span=self._span)
            further, states, rows = self._turn(number, ir.const(True, "bool"), states)
            collected.append(rows)
            if not isinstance(further, Constant):
                if turn + 1 < turns:
                    return None
            elif not further.data.any():
                break
        joined = []
        for parts in zip(*collected, strict=True):
            if any(part.type != parts[0].type or not isinstance(part.type, TensorType) for part in parts):
                return None
            lying = [self._call("expand_dims", part, axis=0) for part in parts]
            joined.append(lying[0] if len(lying) == 1 else self._call("concatenate", Tuple(tuple(lying)), axis=0))
        return [*states, *joined]

    def _while(self, limit: Expr | None, condition: Expr | None, states: list[Expr], count: Any) -> list[Expr]:
        always = [False]

        def turn(number: Expr, go: Expr, carried: list[Expr]) -> tuple[Expr | None, list[Expr], list[Expr]]:
            given, after, rows = self._turn(number, go, carried)
            further = self._scalar(given, "bool")
            # a condition passed through unchanged remains true
            always[0] = further is go or (isinstance(further, Constant) and bool(further.data.all()))
            return (None if always[0] else further), after, rows

        outer = self.outer | {value for value in (limit, condition) if value is not None and not is_free(value)}
        after, lists, ran = looped(self._dynamic, Loop(self.name, states, condition, limit, turn, outer))
        exact = count is not None and always[0] and (condition is None or isinstance(condition, Constant))
        return [*after, *self._stacked(lists, ran, count if exact else None)]

    def _stacked(self, lists: Sequence[Expr], ran: Expr, turns: Any) -> list[Expr]:
        found = []
        for item in lists:
            count = self._dynamic.defined(ran, self.name) if turns is None else turns
            found.append(stacked(self._dynamic, item, count, self.name))
        return found

    # SequenceMap

    def map(self) -> list[Expr]:
        """Return the results of a SequenceMap: lists of the graph's results for each element."""
        values = [value for value in self.values if value is not None]
        given = [as_list(self._dynamic, v, self.name) if not isinstance(v.type, TensorType) else v for v in values]
        if len(given) < len(self.values) or not isinstance(given[0].type, ListType):
            raise self._wrong("expected a sequence as input 0")
        limit = self._call("list_length", given[0])
        for index, item in enumerate(given):
            if index and isinstance(item.type, ListType):
                is_equal = self._call("equal", self._call("list_length", item), limit)
                text = f"node '{self.name}': the sequences have different lengths"
                given[index] = self._call("list_require", item, is_equal, message=text)

        def turn(number: Expr, _go: Expr, _carried: list[Expr]) -> tuple[Expr | None, list[Expr], list[Expr]]:
            items = [
                taken_out(self._dynamic, item, number, self.name) if isinstance(item.type, ListType) else item
                for item in given
            ]
            return None, [], self.imported(items)

        outer = self.outer | {limit} | {item for item in given if not is_free(item)}
        _, lists, _ = looped(self._dynamic, Loop(self.name, [], None, limit, turn, outer))
        return lists

    # Scan

    def scan(self) -> list[Expr]:
        """Return the results of a Scan of opset 9 or newer."""
        scanned = next((int(item.i) for item in self.proto.attribute if item.name == "num_scan_inputs"), 0)
        values = [value for value in self.values if value is not None]
        states = len(values) - scanned
        rows = len(self.graph.output) - states
        if scanned < 1 or states < 0 or rows < 0 or len(self.graph.input) != len(values):
            raise self._wrong(f"{len(values)} inputs, {scanned} of them scanned, do not fit the graph")
        parts, axes = values[states:], self._listed("scan_input_axes", scanned)
        places = [axis % len(shape_of(part)) for axis, part in zip(axes, parts, strict=True)]
        backward = self._listed("scan_input_directions", scanned)
        turns = shape_of(parts[0])[places[0]]
        is_open = isinstance(turns, Dim)
        extent = {"values": (turns,), "dtype": "int64", "shape": ()}
        limit: Expr = self._call("extents", **extent) if is_open else ir.const(turns, "int64")

        def turn(number: Expr, _go: Expr, carried: list[Expr]) -> tuple[Expr | None, list[Expr], list[Expr]]:
            slices = []
            for part, axis, back in zip(parts, places, backward, strict=True):
                last = self._call("subtract", limit, ir.const(1, "int64"))
                at = self._call("subtract", last, number) if back else number
                slices.append(self._call("take", part, at, axis=axis))
            results = self.imported([*carried, *slices])
            return None, results[:states], results[states:]

        outer = self.outer | {part for part in parts if not is_free(part)}
        after, lists, ran = looped(self._dynamic, Loop(self.name, values[:states], None, limit, turn, outer))
        found = self._stacked(lists, ran, turns)
        directions, targets = self._listed("scan_output_directions", rows), self._listed("scan_output_axes", rows)
        for index, (result, axis, back) in enumerate(zip(found, targets, directions, strict=True)):
            rank = len(shape_of(result))
            found[index] = self._call("reverse", result, axis=0) if back else result
            if axis % rank:
                order = list(range(1, rank))
                order.insert(axis % rank, 0)
                found[index] = self._call("transpose", found[index], axes=tuple(order))
        return [*after, *found]

    def _listed(self, name: str, count: int) -> list[int]:
        found = next((list(item.ints) for item in self.proto.attribute if item.name == name), [0] * count)
        if len(found) != count:
            raise self._wrong(f"{name} has {len(found)} entries, expected {count}")
        return found


@importer("Scan", since=9)
def _scan(node: Node) -> list[Expr]:
    given = node.all_inputs()
    states = _states(node, len(given))
    axes = _listed(node, "scan_input_axes", len(given) - states)
    parts = given[states:]
    axes = [node.axis(axis, len(shape_of(part))) for axis, part in zip(axes, parts, strict=True)]
    return _scanned(node, given[:states], parts, axes, _listed(node, "scan_input_directions", len(parts)))


@importer("Scan", since=8)
def _batched_scan(node: Node) -> list[Expr]:
    """Scan the sequences of a batch one by one; every input has the batch first, then the iterations."""
    if node.has(0):
        node.unsupported("with sequences of several lengths is not supported", UNROLL)
    given = [node.input(index) for index in range(1, len(node.inputs))]
    states = _states(node, len(given))
    backward = _listed(node, "directions", len(given) - states)
    counts = {shape_of(item)[0] for item in given if shape_of(item)}
    batch = next(iter(counts))
    if len(counts) != 1 or any(len(shape_of(item)) < 1 + (index >= states) for index, item in enumerate(given)):
        node.wrong(f"inputs of shapes {', '.join(str(shape_of(item)) for item in given)} have no batch in common")
    if isinstance(batch, Dim) or not batch:
        node.unsupported(f"of opset 8 with a batch of {batch} is not supported", UNROLL)
    cost.require("operators", batch, node.name)
    columns: list[list[Expr]] = []
    for index in range(batch):
        items = [_turn(node, item, 0, index) for item in given]
        columns.append(_scanned(node, items[:states], items[states:], [0] * len(backward), backward))
    lying = [[node.reshape(item, (1, *shape_of(item))) for item in parts] for parts in zip(*columns, strict=True)]
    return [node.concatenate(parts, 0) for parts in lying]


def _states(node: Node, count: int) -> int:
    """Return the number of states among `count` inputs; the others are scanned."""
    scanned, body = node.integer("num_scan_inputs"), node.attribute("body")
    states = count - scanned
    if not isinstance(body, onnx.GraphProto) or scanned < 1 or states < 0:
        node.wrong(f"{count} inputs, {scanned} of them scanned, do not fit")
    if len(body.output) < states or len(body.input) != count:
        node.wrong(f"a graph of {len(body.input)} inputs and {len(body.output)} outputs does not fit {states} states")
    return states


def _scanned(
    node: Node, carried: list[Expr], parts: Sequence[Expr], axes: Sequence[int], backward: Sequence[int]
) -> list[Expr]:
    """Import the graph for each iteration; return the final states, and the stacked scan outputs."""
    body = node.attribute("body")
    lengths = {shape_of(part)[axis] for axis, part in zip(axes, parts, strict=True)}
    if len(lengths) != 1:
        node.wrong(f"the scanned inputs differ in length: {sorted(lengths)}")
    (turns,) = lengths
    if not turns or isinstance(turns, Dim):
        node.unsupported(f"of {turns or 'no'} iterations is not supported", UNROLL)
    cost.require("operators", turns * max(1, len(body.node)), node.name)
    count = len(carried)
    collected: list[list[Expr]] = [[] for _ in body.output[count:]]
    for turn in range(turns):
        sides = zip(parts, axes, backward, strict=True)
        slices = [_turn(node, part, axis, turns - 1 - turn if back else turn) for part, axis, back in sides]
        given = node.graph("body", [*carried, *slices])
        for old, new in zip(carried, given[:count], strict=True):
            if shape_of(old) != shape_of(new):
                node.unsupported(f"with a state that changes from {shape_of(old)} to {shape_of(new)} is not supported")
        carried = given[:count]
        for place, result in zip(collected, given[count:], strict=True):
            place.append(result)
    return [*carried, *_joined(node, collected)]


def _listed(node: Node, name: str, count: int) -> list[int]:
    found = list(node.integers(name, (0,) * count))
    if len(found) != count:
        node.wrong(f"{name} has {len(found)} entries, expected {count}")
    return found


def _turn(node: Node, part: Expr, axis: int, turn: int) -> Expr:
    """Return the slice of a scanned input for one iteration, without the scan axis."""
    shape = shape_of(part)
    return node.reshape(node.cut(part, axis, turn, turn + 1), (*shape[:axis], *shape[axis + 1 :]))


def _joined(node: Node, collected: Sequence[Sequence[Expr]]) -> list[Expr]:
    """Return the scan outputs of all iterations, stacked along a new axis."""
    axes = _listed(node, "scan_output_axes", len(collected))
    backward = _listed(node, "scan_output_directions", len(collected))
    joined = []
    for results, place, back in zip(collected, axes, backward, strict=True):
        shape = shape_of(results[0])
        if any(shape_of(result) != shape for result in results):
            node.unsupported("with results of several shapes is not supported")
        axis = node.axis(place, len(shape) + 1)
        lying = (*shape[:axis], 1, *shape[axis:])
        cost.require("constants", math.prod(map(typical, lying)), node.name)
        parts = [node.reshape(result, lying) for result in (reversed(results) if back else results)]
        joined.append(node.concatenate(parts, axis))
    return joined
