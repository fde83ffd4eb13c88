"""Loops of ONNX whose number of turns is known: the graph of each turn is imported anew, one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.table import UNROLL, importer
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dim_estimates import typical
from mlfc.support.dims import Dim


@dataclass(frozen=True)
class _Scan:
    """A Scan's inputs, as one sequence has them."""

    states: Sequence[Expr]
    parts: Sequence[Expr]
    axes: Sequence[int]  # of the parts: which one is scanned
    backward: Sequence[int]


@importer("Scan", since=9)
def _scan(node: Node) -> list[Expr]:
    given = node.all_inputs()
    states = _states(node, len(given))
    axes = _listed(node, "scan_input_axes", len(given) - states)
    parts = given[states:]
    axes = [node.axis(axis, len(shape_of(part))) for axis, part in zip(axes, parts, strict=True)]
    backward = _listed(node, "scan_input_directions", len(parts))
    carried, collected = _scanned(node, _Scan(given[:states], parts, axes, backward))
    return [*carried, *_joined(node, collected)]


@importer("Scan", since=8)
def _batched_scan(node: Node) -> list[Expr]:
    """Scan the sequences of a batch one by one: every input begins with the batch, then come the turns."""
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
        scan = _Scan(items[:states], items[states:], [0] * len(backward), backward)
        carried, collected = _scanned(node, scan)
        columns.append([*carried, *_joined(node, collected)])
    lying = [[node.reshape(item, (1, *shape_of(item))) for item in parts] for parts in zip(*columns, strict=True)]
    return [node.concatenate(parts, 0) for parts in lying]


def _states(node: Node, count: int) -> int:
    """Return how many of `count` inputs are states; the others are scanned."""
    scanned, body = node.integer("num_scan_inputs"), node.attribute("body")
    states = count - scanned
    if not isinstance(body, onnx.GraphProto) or scanned < 1 or states < 0:
        node.wrong(f"{count} inputs, {scanned} of them scanned, do not fit")
    if len(body.output) < states or len(body.input) != count:
        node.wrong(f"a graph of {len(body.input)} inputs and {len(body.output)} outputs does not fit {states} states")
    return states


def _scanned(node: Node, scan: _Scan) -> tuple[list[Expr], list[list[Expr]]]:
    """Import the graph for each turn; return the states behind the last one, and what the turns gave."""
    body = node.attribute("body")
    lengths = {shape_of(part)[axis] for axis, part in zip(scan.axes, scan.parts, strict=True)}
    if len(lengths) != 1:
        node.wrong(f"the scanned inputs have {sorted(lengths)} turns")
    (turns,) = lengths
    if not turns or isinstance(turns, Dim):
        node.unsupported(f"of {turns or 'no'} turns is not supported", UNROLL)
    cost.require("operators", turns * max(1, len(body.node)), node.name)
    carried, count = list(scan.states), len(scan.states)
    collected: list[list[Expr]] = [[] for _ in body.output[count:]]
    for turn in range(turns):
        slices = [
            _turn(node, part, axis, turns - 1 - turn if back else turn)
            for part, axis, back in zip(scan.parts, scan.axes, scan.backward, strict=True)
        ]
        given = node.graph("body", [*carried, *slices])
        for old, new in zip(carried, given[:count], strict=True):
            if shape_of(old) != shape_of(new):
                node.unsupported(f"with a state that changes from {shape_of(old)} to {shape_of(new)} is not supported")
        carried = given[:count]
        for place, result in zip(collected, given[count:], strict=True):
            place.append(result)
    return carried, collected


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
