"""Sequences and optionals. Those of static structure are resolved at compile time, others become lists.

A sequence of known length is a Relay tuple of its elements, and is indexed at compile time. If its length or a
position in it is a runtime value, it is a list. An optional that is known to have a value is that value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import onnx

from mlfc.errors import ModelError
from mlfc.frontend.control import as_list, element_shape, is_optional, taken_out
from mlfc.frontend.dynamic import NOTHING, Dynamic
from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr, ListType, TensorType, Tuple, Type
from mlfc.support import cost
from mlfc.support.dims import Dim, Extent, is_static

_ELEMENT_STEPS = 64  # cost of each element of a new sequence


def describe(expr: Expr) -> str:
    """Return a description of an expression that is not a tensor, for messages."""
    if expr is NOTHING:
        return "an optional without a value"
    if is_optional(expr.type):
        return "an optional"
    return f"a sequence of {len(expr.fields)}" if isinstance(expr, Tuple) else "a sequence"


def tensors_in(values: Sequence[Expr | None]) -> Iterator[Expr]:
    """Yield the tensors among values, including those in sequences; missing values are skipped."""
    for value in values:
        if value is not None and value is not NOTHING:
            yield from value.fields if isinstance(value, Tuple) else (value,)


def check_tensors(proto: onnx.NodeProto, values: Sequence[Expr | None], name: str) -> None:
    """Raise ModelError if an input of a node is not a tensor."""
    for tensor, value in zip(proto.input, values, strict=True):
        if isinstance(value, Tuple) or (value is not None and isinstance(value.type, ListType)):
            raise ModelError(
                f"{proto.op_type} takes tensors, but '{tensor}' is {describe(value)}", place=f"node '{name}'"
            )


def _sequence(node: Node, elements: Sequence[Expr]) -> Tuple:
    cost.spend("steps", _ELEMENT_STEPS * len(elements), node.name)
    return Tuple(tuple(elements))


def _known(node: Node) -> tuple[Expr, ...] | None:
    """Return the elements of input 0, a sequence; None if its length is a runtime value."""
    found = node.input(0)
    if isinstance(found.type, TensorType) or is_optional(found.type):
        what = "a tensor" if isinstance(found.type, TensorType) else describe(found)
        node.wrong(f"expected a sequence as input 0, got {what}")
    return found.fields if isinstance(found, Tuple) else None


def _list(node: Node, *others: Type) -> Expr:
    """Return input 0, a sequence, as a list whose element types include `others`."""
    return as_list(_dynamic(node), node.input(0), node.name, *others)


def _dynamic(node: Node) -> Dynamic:
    if node.dynamic is None:
        node.unsupported("with a length or position that is not constant is not supported here")
    return node.dynamic


def _is_late(node: Node, index: int) -> bool:
    """Return whether a position is a runtime value."""
    return node.dynamic is not None and node.has(index) and node.known(index) is None


def _late_position(node: Node, index: int) -> Expr:
    kind = node.input(index).type
    if not isinstance(kind, TensorType) or kind.size != 1 or kind.dtype not in ("int32", "int64"):
        node.wrong(f"a position is one integer, not {kind}")
    return node.input(index)


def _position(node: Node, index: int, count: int) -> int:
    """Return a nonnegative position in a sequence of `count` elements."""
    given = node.value(index, "position")
    if given.size != 1 or given.dtype.kind not in "iu":
        node.wrong(f"a position is one integer, not {given.dtype} of shape {given.shape}")
    position = int(given.reshape(()))
    if not -count <= position < count:
        node.wrong(f"position {position} is out of range for a sequence of {count} elements")
    return position % count


@importer("SequenceEmpty", ignores=("dtype",))
@importer("SequenceConstruct")
def _sequence_construct(node: Node) -> Expr:
    return _sequence(node, node.all_inputs() if node.operator == "SequenceConstruct" else ())


@importer("SequenceLength", sequences=True)
def _sequence_length(node: Node) -> Expr:
    elements = _known(node)
    return node.call("list_length", node.input(0)) if elements is None else node.constant(len(elements), "int64")


@importer("SequenceAt", sequences=True)
def _sequence_at(node: Node) -> Expr:
    elements = _known(node)
    if elements == () and _is_late(node, 1):
        node.wrong("an empty sequence has no element")
    if elements is None or _is_late(node, 1):
        return taken_out(_dynamic(node), _list(node), _late_position(node, 1), node.name)
    return elements[_position(node, 1, len(elements))]


@importer("SequenceInsert", sequences=True)
def _sequence_insert(node: Node) -> Expr:
    elements, new = _known(node), node.input(1)
    if not isinstance(new.type, TensorType):
        node.wrong(f"expected a tensor as input 1, got {describe(new)}")
    if elements is None or _is_late(node, 2):
        items = _list(node, new.type)
        if not node.has(2):
            return node.call("list_append", items, new)
        return node.call("list_insert", items, _late_position(node, 2), new)
    # inserting after the last element is allowed, but only with a nonnegative position
    at = len(elements)
    if node.has(2):
        given = node.value(2, "position")
        at = len(elements) if given.size == 1 and given.reshape(()) == len(elements) else _position(node, 2, at)
    return _sequence(node, (*elements[:at], new, *elements[at:]))


@importer("SequenceErase", sequences=True)
def _sequence_erase(node: Node) -> Expr:
    elements = _known(node)
    if elements == ():
        node.wrong("an empty sequence has no element to erase")
    if elements is None or _is_late(node, 1):
        position = _late_position(node, 1) if node.has(1) else node.constant(-1, "int64")
        return node.call("list_erase", _list(node), position)
    at = _position(node, 1, len(elements)) if node.has(1) else len(elements) - 1
    return _sequence(node, (*elements[:at], *elements[at + 1 :]))


@importer("SplitToSequence", since=11)
def _split_to_sequence(node: Node) -> Expr:
    x, shape = node.input(0), node.shape(0)
    axis = node.axis(node.integer("axis", 0), len(shape))
    keeps = node.flag("keepdims", 1) or node.has(1)
    if node.dynamic is not None and (isinstance(shape[axis], Dim) or _is_late(node, 1)):
        return _late_split(node, node.dynamic, axis, keeps)
    sizes = _sizes(node, shape[axis])
    cost.spend("operators", len(sizes), node.name)
    parts = [node.cut(x, axis, end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    rest = (*shape[:axis], *shape[axis + 1 :])
    return _sequence(node, parts if keeps else [node.reshape(part, rest) for part in parts])


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
    if not is_static(sizes) or sum(sizes) != extent or min(sizes, default=0) < 0:
        node.wrong(f"sizes {sizes[:8]} do not divide {extent} elements")
    return sizes


def _late_split(node: Node, dynamic: Dynamic, axis: int, keeps: bool) -> Expr:
    """Return a list of the parts; their sizes are checked against the axis at run time."""
    shape = node.shape(0)
    part: Extent = 1
    sizes = node.filled((shape[axis],), 1, "int64")
    if node.has(1):
        split = node.cast(node.input(1), "int64")
        part = dynamic.varying(node.name)
        if node.rank(1) > 1:
            node.wrong(f"sizes are a list of integers, not of {node.rank(1)} dimensions")
        sizes = split
        if not node.rank(1):  # equal parts, except for the last one
            size = node.runtime_size(split, 1)
            begins = node.call("multiply", node.counted((shape[axis] + size - 1) // size), size)
            sizes = node.call("minimum", node.call("subtract", shape[axis], begins), size)
    element = (*shape[:axis], part, *shape[axis + 1 :]) if keeps else (*shape[:axis], *shape[axis + 1 :])
    return node.call("list_split", node.input(0), sizes, shape=element, axis=axis, keepdims=keeps)


@importer("ConcatFromSequence", sequences=True)
def _concat_from_sequence(node: Node) -> Expr:
    elements, stacks = _known(node), bool(node.integer("new_axis", 0))
    if elements is None:
        return _late_concat(node, _dynamic(node), stacks)
    if not elements:
        node.wrong("an empty sequence cannot be concatenated")
    axis = node.axis(node.integer("axis"), len(shape_of(elements[0])) + stacks)
    return node.concatenate([node.call("expand_dims", x, axis=axis) if stacks else x for x in elements], axis)


def _late_concat(node: Node, dynamic: Dynamic, stacks: bool) -> Expr:
    items, kind = node.input(0), node.input(0).type
    assert isinstance(kind, ListType)
    if kind.others:
        step = "Give all tensors of the sequence the same rank"
        node.unsupported(f"of tensors that have {' or '.join(map(str, kind.ranks))} dimensions is not supported", step)
    rank = len(kind.element.shape) + stacks
    axis = node.axis(node.integer("axis"), rank)
    has_some = node.call("greater", node.call("list_length", items), 0)
    items = node.call("list_require", items, has_some, message=f"node '{node.name}': the sequence is empty")
    shape = list(element_shape(dynamic, kind.element, node.name))
    total = dynamic.symbol(node.name).dim
    if stacks:
        shape = [total, *shape]
        found = node.call("list_stack", items, shape=tuple(shape))
    else:
        shape[axis] = total
        found = node.call("list_concat", items, shape=tuple(shape), axis=axis)
    dynamic.noted(found, shape)
    return node.transpose(found, [*range(1, axis + 1), 0, *range(axis + 1, rank)]) if stacks else found


@importer("SequenceMap", sequences=True)
def _sequence_map(node: Node) -> list[Expr]:
    """Apply the graph to the elements of sequences of equal length; tensor inputs are passed to each call."""
    elements = _known(node)
    if elements is None:
        node.unsupported("of a sequence whose length is not constant is not supported here")
    count = len(elements)
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
    value = node.optional(0)
    if value is None or value is NOTHING or not is_optional(value.type):
        return node.constant(value is not None and value is not NOTHING, "bool")
    return _has_value(node, value)


def _has_value(node: Node, value: Expr) -> Expr:
    """Return a runtime flag: whether an optional has a value."""
    assert isinstance(value, Tuple)
    if len(value.fields) == 2:
        return value.fields[0]
    return node.call("greater", node.call("list_length", value.fields[0]), 0)


@importer("OptionalGetElement", sequences=True)
def _optional_get_element(node: Node) -> Expr:
    value = node.input(0)
    if value is NOTHING:
        node.wrong("the optional has no value")
    if not is_optional(value.type):
        return value
    assert isinstance(value, Tuple)
    text = f"node '{node.name}': the optional has no value"
    items = node.call("list_require", value.fields[-1], _has_value(node, value), message=text)
    return items if len(value.fields) == 2 else taken_out(_dynamic(node), items, node.constant(0, "int64"), node.name)
