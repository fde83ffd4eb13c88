"""Loop and Scan of ONNX where turns are left to the run: their states, and what turns give as rows of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx

from mlfc.errors import ModelError, UnsupportedError
from mlfc.frontend.control import Loop, as_list, is_free, looped, stacked, taken_out
from mlfc.frontend.dynamic import Dynamic
from mlfc.frontend.onnx.table import UNROLL
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, ListType, Span, TensorType, Tuple
from mlfc.support import cost
from mlfc.support.dims import Dim

# imports a graph for its arguments
Import: TypeAlias = "Callable[[onnx.GraphProto, Sequence[Expr]], list[Expr]]"

# of loops that are written out: turns, and nodes of all turns
_FEW_TURNS, _FEW_NODES = 32, 256


def is_long(turns: Any, nodes: int) -> bool:
    """Tell whether a loop is no longer written out turn by turn."""
    return isinstance(turns, Dim) or turns > _FEW_TURNS or turns * nodes > _FEW_NODES


def is_long_scan(proto: onnx.NodeProto, values: Sequence[Expr | None], graph: onnx.GraphProto) -> bool:
    """Tell whether a Scan has many iterations, or their number is only known at run time."""
    last = values[-1]
    axes = next((list(item.ints) for item in proto.attribute if item.name == "scan_input_axes"), [])
    axis, shape = axes[-1] if axes else 0, last.type.shape if last and isinstance(last.type, TensorType) else ()
    if not -len(shape) <= axis < len(shape):
        return False
    return is_long(shape[axis], len(graph.node)) or any(value is None for value in values)


@dataclass(eq=False)
class Loops:
    """A node that is a loop, with its inputs."""

    dynamic: Dynamic | None  # None if shapes are static: all iterations are unrolled then
    proto: onnx.NodeProto
    values: Sequence[Expr | None]
    graph: onnx.GraphProto
    name: str
    outer: AbstractSet[Expr]

    @property
    def _span(self) -> Span:
        return Span((self.name,))

    @property
    def _dynamic(self) -> Dynamic:
        assert self.dynamic is not None  # `loop` returns before
        return self.dynamic

    def _call(self, operator: str, *args: Expr, **attrs: Any) -> Call:
        return ir.call(operator, args, attrs, span=self._span)

    def _wrong(self, cause: str) -> ModelError:
        return ModelError(f"{self.proto.op_type}: {cause}", place=f"node '{self.name}'")

    # Loop

    def loop(self, imported: Import) -> list[Expr]:
        """Return the results of a Loop."""
        given = list(self.values) + [None] * max(0, 2 - len(self.values))
        limit, condition = (
            self._scalar(value, dtype) for value, dtype in zip(given[:2], ("int64", "bool"), strict=True)
        )
        states = [value for value in given[2:] if value is not None]
        if len(states) < len(given) - 2 or len(self.graph.input) != len(states) + 2:
            raise self._wrong(f"a graph of {len(self.graph.input)} inputs does not fit {len(given) - 2} states")
        rows = len(self.graph.output) - 1 - len(states)
        if rows < 0:
            raise self._wrong(f"a graph of {len(self.graph.output)} outputs does not fit {len(states)} states")
        if self.dynamic is None:
            return self._static(imported, limit, states, condition)
        turns = None if limit is None else self.dynamic.known(limit)
        count = None if turns is None else turns.reshape(-1)[0]
        if isinstance(condition, Constant) and not condition.data.any():
            count = 0
        if count is not None and not is_long(count, len(self.graph.node)) and count > 0:
            found = self._unrolled(imported, int(count), states, condition)
            if found is not None:
                return found
        return self._while(imported, limit, condition, states, count)

    def _static(self, imported: Import, limit: Expr | None, states: list[Expr], condition: Expr | None) -> list[Expr]:
        """Return the results of a Loop that is unrolled to its end; the limit on operators bounds it."""
        found = None
        if isinstance(limit, Constant):
            never = isinstance(condition, Constant) and not condition.data.any()
            found = self._unrolled(imported, 0 if never else int(limit.data), states, condition)
        if found is None or len(found) < len(self.proto.output):
            raise UnsupportedError(
                "a Loop whose number of iterations is not a positive constant is not supported here",
                place=f"node '{self.name}'",
                next_step=UNROLL,
            )
        return found

    def _scalar(self, value: Expr | None, dtype: str) -> Expr | None:
        if value is None:
            return None
        kind = value.type
        if not isinstance(kind, TensorType) or kind.dtype != dtype or kind.size != 1:
            raise self._wrong(f"expected one {dtype}, got {kind}")
        if isinstance(value, Constant):
            return Constant(value.data.reshape(()), None, self._span)
        return self._call("reshape", value, newshape=()) if kind.shape else value

    def _number(self, value: Expr, index: int) -> Expr:
        """Return the number or the condition of a turn in the shape that the graph says."""
        declared = self.graph.input[index].type.tensor_type
        if declared.HasField("shape") and len(declared.shape.dim) == 1:
            if isinstance(value, Constant):
                return Constant(value.data.reshape(1), None, self._span)
            return self._call("reshape", value, newshape=(1,))
        return value

    def _unrolled(self, imported: Import, turns: int, states: list[Expr], condition: Expr | None) -> list[Expr] | None:
        """Import each turn; None where only the run knows whether there is another one."""
        if condition is not None and not isinstance(condition, Constant):
            return None
        carried, collected = states, []
        for turn in range(turns):
            cost.require("operators", len(self.graph.node), self.name)
            number = self._number(ir.const(turn, "int64", span=self._span), 0)
            results = imported(self.graph, [number, self._number(ir.const(True, "bool"), 1), *carried])
            carried = results[1 : len(states) + 1]
            collected.append(results[len(states) + 1 :])
            if not isinstance(results[0], Constant):
                if turn + 1 < turns:
                    return None
            elif not results[0].data.any():
                break
        rows = []
        for parts in zip(*collected, strict=True):
            if any(part.type != parts[0].type or not isinstance(part.type, TensorType) for part in parts):
                return None
            lying = [self._call("expand_dims", part, axis=0) for part in parts]
            rows.append(lying[0] if len(lying) == 1 else self._call("concatenate", Tuple(tuple(lying)), axis=0))
        return [*carried, *rows]

    def _while(
        self, imported: Import, limit: Expr | None, condition: Expr | None, states: list[Expr], count: Any
    ) -> list[Expr]:
        always = [False]

        def turn(number: Expr, go: Expr, carried: list[Expr]) -> tuple[Expr | None, list[Expr], list[Expr]]:
            results = imported(self.graph, [self._number(number, 0), self._number(go, 1), *carried])
            further = self._scalar(results[0], "bool")
            # a condition that is the one of this turn holds in the next one, too
            always[0] = further is go or (isinstance(further, Constant) and bool(further.data.all()))
            behind = len(states) + 1
            return (None if always[0] else further), results[1:behind], results[behind:]

        outer = self.outer | {value for value in (limit, condition) if value is not None and not is_free(value)}
        after, lists, ran = looped(self._dynamic, Loop(self.name, states, condition, limit, turn, outer))
        exact = count is not None and always[0] and (condition is None or isinstance(condition, Constant))
        turns = count if exact else None
        return [*after, *(self._stacked(item, ran, turns) for item in lists)]

    def _stacked(self, item: Expr, ran: Expr, turns: Any) -> Expr:
        count = self._dynamic.defined(ran, self.name) if turns is None else turns
        return stacked(self._dynamic, item, count, self.name)

    # SequenceMap

    def map(self, imported: Import) -> list[Expr]:
        """Return the results of a SequenceMap: lists of what the graph gives for each element."""
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
            return None, [], imported(self.graph, items)

        outer = self.outer | {limit} | {item for item in given if not is_free(item)}
        _, lists, _ = looped(self._dynamic, Loop(self.name, [], None, limit, turn, outer))
        return lists

    # Scan

    def scan(self, imported: Import) -> list[Expr]:
        """Return the results of a Scan of opset 9 or newer."""
        scanned = self._integer("num_scan_inputs", 0)
        values = [value for value in self.values if value is not None]
        states = len(values) - scanned
        rows = len(self.graph.output) - states
        if scanned < 1 or states < 0 or rows < 0 or len(self.graph.input) != len(values):
            raise self._wrong(f"{len(values)} inputs, {scanned} of them scanned, do not fit the graph")
        parts, axes = values[states:], self._listed("scan_input_axes", scanned)
        places = [axis % len(ir.tensor_type(part).shape) for axis, part in zip(axes, parts, strict=True)]
        backward = self._listed("scan_input_directions", scanned)
        turns = ir.tensor_type(parts[0]).shape[places[0]]
        limit: Expr = ir.const(turns, "int64") if isinstance(turns, int) else self._extent(turns)

        def turn(number: Expr, _go: Expr, carried: list[Expr]) -> tuple[Expr | None, list[Expr], list[Expr]]:
            slices = []
            for part, axis, back in zip(parts, places, backward, strict=True):
                last = self._call("subtract", limit, ir.const(1, "int64"))
                at = self._call("subtract", last, number) if back else number
                slices.append(self._call("take", part, at, axis=axis))
            results = imported(self.graph, [*carried, *slices])
            return None, results[:states], results[states:]

        outer = self.outer | {part for part in parts if not is_free(part)}
        after, lists, ran = looped(self._dynamic, Loop(self.name, values[:states], None, limit, turn, outer))
        found = [self._stacked(item, ran, turns) for item in lists]
        directions, targets = self._listed("scan_output_directions", rows), self._listed("scan_output_axes", rows)
        return [*after, *map(self._turned, found, targets, directions)]

    def _turned(self, rows: Expr, axis: int, back: int) -> Expr:
        """Return rows along the axis that the node says, in its direction."""
        rank = len(ir.tensor_type(rows).shape)
        found = self._call("reverse", rows, axis=0) if back else rows
        if axis % rank == 0:
            return found
        order = list(range(1, rank))
        order.insert(axis % rank, 0)
        return self._call("transpose", found, axes=tuple(order))

    def _extent(self, extent: Any) -> Expr:
        return self._call("extents", values=(extent,), dtype="int64", shape=())

    def _integer(self, name: str, default: int) -> int:
        return next((int(item.i) for item in self.proto.attribute if item.name == name), default)

    def _listed(self, name: str, count: int) -> list[int]:
        found = next((list(item.ints) for item in self.proto.attribute if item.name == name), [0] * count)
        if len(found) != count:
            raise self._wrong(f"{name} has {len(found)} entries, expected {count}")
        return found
