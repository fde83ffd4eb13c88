"""Sequences and optionals: what they hold is known here, so that only the tensors in them are left.

A sequence is a Relay tuple of its elements. Nothing in a model makes its length depend on data but loops, which are
not supported; positions in it must be constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from mlfc.errors import ModelError
from mlfc.frontend.dynamic import NOTHING
from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr, ListType, Tuple
from mlfc.support import cost

_ELEMENT_STEPS = 64  # of work for each element of a sequence that is made


def describe(expr: Expr) -> str:
    """Return what an expression that is no tensor stands for, as messages say it."""
    if not isinstance(expr, Tuple):
        return "a sequence"
    return "an optional without a value" if expr is NOTHING else f"a sequence of {len(expr.fields)}"


def tensors_in(values: Sequence[Expr | None]) -> Iterator[Expr]:
    """Yield what is given of these: tensors, and those that are in sequences."""
    for value in values:
        if value is not None:
            yield from value.fields if isinstance(value, Tuple) else (value,)


def check_tensors(proto: onnx.NodeProto, values: Sequence[Expr | None], name: str) -> None:
    """Raise ModelError if one of the inputs of a node is no tensor."""
    for tensor, value in zip(proto.input, values, strict=True):
        if isinstance(value, Tuple) or (value is not None and isinstance(value.type, ListType)):
            raise ModelError(
                f"{proto.op_type} takes tensors, but '{tensor}' is {describe(value)}", place=f"node '{name}'"
            )


def _sequence(node: Node, elements: Sequence[Expr]) -> Tuple:
    cost.spend("steps", _ELEMENT_STEPS * len(elements), node.name)
    return Tuple(tuple(elements))


def _elements(node: Node, index: int = 0) -> tuple[Expr, ...]:
    found = node.input(index)
    if not isinstance(found, Tuple) or found is NOTHING:
        what = describe(found) if isinstance(found, Tuple) else "a tensor"
        node.wrong(f"expected a sequence as input {index}, got {what}")
    return found.fields


def _position(node: Node, index: int, count: int) -> int:
    """Return a position in a sequence counted from the front; `count` is how many there are."""
    given = node.value(index, "position")
    if given.size != 1 or given.dtype.kind not in "iu":
        node.wrong(f"a position is one integer, not {given.dtype} of shape {given.shape}")
    position = int(given.reshape(()))
    if not -count <= position < count:
        node.wrong(f"position {position} is outside {count} of a sequence")
    return position % count


@importer("SequenceEmpty", ignores=("dtype",))
def _sequence_empty(node: Node) -> Expr:
    return _sequence(node, ())


@importer("SequenceConstruct")
def _sequence_construct(node: Node) -> Expr:
    return _sequence(node, node.all_inputs())


@importer("SequenceLength", sequences=True)
def _sequence_length(node: Node) -> Expr:
    return node.constant(len(_elements(node)), "int64")


@importer("SequenceAt", sequences=True)
def _sequence_at(node: Node) -> Expr:
    elements = _elements(node)
    return elements[_position(node, 1, len(elements))]


@importer("SequenceInsert", sequences=True)
def _sequence_insert(node: Node) -> Expr:
    elements, new = _elements(node), node.input(1)
    if isinstance(new, Tuple):
        node.wrong(f"expected a tensor as input 1, got {describe(new)}")
    # behind the last element is a position, too; counted from the end, that is none
    at = len(elements)
    if node.has(2):
        given = node.value(2, "position")
        at = len(elements) if given.size == 1 and given.reshape(()) == len(elements) else _position(node, 2, at)
    return _sequence(node, (*elements[:at], new, *elements[at:]))


@importer("SequenceErase", sequences=True)
def _sequence_erase(node: Node) -> Expr:
    elements = _elements(node)
    if not elements:
        node.wrong("an empty sequence has no element to erase")
    at = _position(node, 1, len(elements)) if node.has(1) else len(elements) - 1
    return _sequence(node, (*elements[:at], *elements[at + 1 :]))


@importer("SplitToSequence", since=11)
def _split_to_sequence(node: Node) -> Expr:
    x, shape = node.input(0), node.shape(0)
    axis = node.axis(node.integer("axis", 0), len(shape))
    keeps = bool(node.integer("keepdims", 1)) or node.has(1)
    sizes = _sizes(node, shape[axis])
    cost.spend("operators", len(sizes), node.name)
    parts, begin = [], 0
    for size in sizes:
        part = node.cut(x, axis, begin, begin + size)
        parts.append(part if keeps else node.reshape(part, (*shape[:axis], *shape[axis + 1 :])))
        begin += size
    return _sequence(node, parts)


def _sizes(node: Node, extent: int) -> Sequence[int]:
    if not node.has(1):
        cost.require("operators", extent, node.name)
        return [1] * extent
    sizes = node.int_values(1, "split")
    if node.rank(1) == 0:
        (size,) = sizes
        if size < 1:
            node.wrong(f"parts of {size} elements do not divide {extent}")
        cost.require("operators", -(-extent // size), node.name)
        return [min(size, extent - begin) for begin in range(0, extent, size)]
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        node.wrong(f"sizes {sizes[:8]} do not divide {extent} elements")
    return sizes


@importer("ConcatFromSequence", sequences=True)
def _concat_from_sequence(node: Node) -> Expr:
    elements = _elements(node)
    if not elements:
        node.wrong("an empty sequence cannot be concatenated")
    rank = len(shape_of(elements[0]))
    if not node.integer("new_axis", 0):
        return node.concatenate(elements, node.axis(node.integer("axis"), rank))
    axis = node.axis(node.integer("axis"), rank + 1)
    return node.concatenate([node.call("expand_dims", part, axis=axis) for part in elements], axis)


@importer("SequenceMap", sequences=True)
def _sequence_map(node: Node) -> list[Expr]:
    """Apply the graph to each element of the first sequence, and of others that are as long; tensors stay."""
    count = len(_elements(node))
    given = node.all_inputs()
    lists = [item.fields if isinstance(item, Tuple) else (item,) * count for item in given]
    if any(len(items) != count for items in lists):
        node.wrong(f"sequences of {', '.join(str(len(items)) for items in lists)} elements do not fit")
    rows = [node.graph("body", list(items)) for items in zip(*lists, strict=True)]
    if not rows:
        node.unsupported("of an empty sequence is not supported", "Remove the node: its results are empty, too")
    return [_sequence(node, column) for column in zip(*rows, strict=True)]


@importer("Optional", sequences=True, ignores=("type",))
def _optional(node: Node) -> Expr:
    return node.input(0) if node.has(0) else NOTHING


@importer("OptionalHasElement", sequences=True)
def _optional_has_element(node: Node) -> Expr:
    return node.constant(node.has(0) and node.input(0) is not NOTHING, "bool")


@importer("OptionalGetElement", sequences=True)
def _optional_get_element(node: Node) -> Expr:
    if node.input(0) is NOTHING:
        node.wrong("the optional has no value")
    return node.input(0)
