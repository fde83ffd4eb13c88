"""Loops of ONNX whose number of turns is known: the graph of each turn is imported anew, one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx

from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dims import typical

_ADVICE = "Export the model with the loop unrolled: a fixed sequence length makes the steps plain operators"


@importer("Scan", since=9)
def _scan(node: Node) -> list[Expr]:
    scanned = node.integer("num_scan_inputs")
    body = node.attribute("body")
    states = len(node.inputs) - scanned
    if not isinstance(body, onnx.GraphProto) or scanned < 1 or states < 0:
        node.wrong(f"{len(node.inputs)} inputs, {scanned} of them scanned, do not fit")
    results = len(body.output) - states
    if results < 0 or len(body.input) != len(node.inputs):
        node.wrong(f"a graph of {len(body.input)} inputs and {len(body.output)} outputs does not fit {states} states")
    axes = _listed(node, "scan_input_axes", scanned)
    backward = _listed(node, "scan_input_directions", scanned)
    parts = [node.input(states + index) for index in range(scanned)]
    axes = [node.axis(axis, len(shape_of(part))) for axis, part in zip(axes, parts, strict=True)]
    lengths = {shape_of(part)[axis] for axis, part in zip(axes, parts, strict=True)}
    if len(lengths) != 1:
        node.wrong(f"the scanned inputs have {sorted(lengths)} turns")
    (turns,) = lengths
    if not turns:
        node.unsupported("of no turns is not supported", _ADVICE)
    cost.require("operators", turns * max(1, len(body.node)), node.name)
    carried = [node.input(index) for index in range(states)]
    collected: list[list[Expr]] = [[] for _ in range(results)]
    for turn in range(turns):
        slices = [
            _turn(node, part, axis, turns - 1 - turn if back else turn)
            for part, axis, back in zip(parts, axes, backward, strict=True)
        ]
        given = node.graph("body", [*carried, *slices])
        for old, new in zip(carried, given[:states], strict=True):
            if shape_of(old) != shape_of(new):
                node.unsupported(f"with a state that changes from {shape_of(old)} to {shape_of(new)} is not supported")
        carried = given[:states]
        for place, result in zip(collected, given[states:], strict=True):
            place.append(result)
    return [*carried, *_joined(node, collected)]


def _listed(node: Node, name: str, count: int) -> list[int]:
    found = list(node.integers(name, (0,) * count))
    if len(found) != count:
        node.wrong(f"{name} has {len(found)} entries, expected {count}")
    return found


def _turn(node: Node, part: Expr, axis: int, turn: int) -> Expr:
    """Return what a turn sees of a scanned input, which has one axis less."""
    shape = shape_of(part)
    return node.reshape(node.cut(part, axis, turn, turn + 1), (*shape[:axis], *shape[axis + 1 :]))


def _joined(node: Node, collected: Sequence[Sequence[Expr]]) -> list[Expr]:
    """Return what the turns gave, along an axis of its own."""
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
