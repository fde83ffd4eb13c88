"""The number of the run: a state that a model with random operators counts up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import onnx

from mlfc.frontend.common import unique_name
from mlfc.relay import ir
from mlfc.relay.ir import Expr, State, TensorType, Tuple, Var
from mlfc.relay.visitor import post_order

_NAME = "random_runs"


@dataclass(frozen=True)
class Counted:
    """What the count of the runs adds to a module: nothing where nothing is drawn."""

    inputs: Sequence[Var] = ()
    outputs: Sequence[Expr] = ()
    titles: Sequence[str] = ()
    states: Sequence[State] = ()


class Runs:
    """The count of the runs of one model, and how many nodes read it."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        taken = {item.name for item in (*graph.input, *graph.output, *graph.initializer)}
        name = unique_name(_NAME, taken)
        self._number = Var(name, TensorType((1,), "int64"))
        self._next = unique_name(f"{name}_next", {*taken, name})
        self.readers = 0

    def draw(self) -> tuple[Expr, int]:
        """Return the number of the run, and a number for the node that asks."""
        self.readers += 1
        return self._number, self.readers

    def counted(self, results: Sequence[Expr]) -> Counted:
        """Return what makes the number a state, if one of the results follows from it."""
        if not self.readers or self._number not in post_order(Tuple(tuple(results))):
            return Counted()
        step = ir.call("add", [self._number, ir.const(1, "int64")])
        return Counted((self._number,), (step,), (self._next,), (State(self._number.name, self._next),))


def requiring(results: list[Expr], checks: Sequence[Expr]) -> list[Expr]:
    """Return results of which the first requires bools to be true."""
    if not checks:
        return results
    flags = [ir.call("reshape", [flag], newshape=()) for flag in checks]
    holds = ir.call("require", [reduce(lambda a, b: ir.call("logical_and", [a, b]), flags)])
    first = results[0]
    none = ir.const(0, ir.tensor_type(first).dtype)
    return [ir.call("where", [holds, first, none], span=first.span), *results[1:]]
