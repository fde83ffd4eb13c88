"""Conversion of nodes of opsets 1 to 6 to opset 7, the oldest that the importers support."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from onnx import TensorProto

from mlfc.frontend.onnx.node import Node, int64

OPSET = 7
_BROADCASTING = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
# former defaults of attributes, by operator and the opset that changed them
_DEFAULTS: dict[tuple[str, int], dict[str, Any]] = {
    ("Selu", 6): {"alpha": 1.6732, "gamma": 1.0507},
    ("Concat", 4): {"axis": 1},
    ("Clip", 6): {"min": -inf, "max": inf},
}


def as_opset_7(node: Node) -> Node:
    """Return a node of an older opset of ONNX's own domain as a node of opset 7.

    Raises ModelError or UnsupportedError for invalid nodes of the older opset, and for nodes in training mode.
    """
    attributes = {name: value for name, value in node.attributes.items() if name != "consumed_inputs"}
    for (operator, changed), defaults in _DEFAULTS.items():
        if node.operator == operator and node.opset < changed:
            attributes = {**defaults, **attributes}
    node = replace(node, inputs=list(node.inputs), attributes=attributes)
    if node.operator in _BROADCASTING:
        _broadcast(node)
    elif node.operator in _CHANGES:
        _CHANGES[node.operator](node)
    return replace(node, opset=OPSET)


def _broadcast(node: Node) -> None:
    """Reshape the second operand so that numpy's broadcasting matches the attributes."""
    allowed, axis = node.attributes.pop("broadcast", 0), node.attributes.pop("axis", None)
    shape, other = node.shape(0), node.shape(1)
    if shape == other or (not allowed and node.has_shape(other, shape)):
        return
    if not allowed:
        node.wrong(f"shapes {shape} and {other} differ, and the attribute 'broadcast' is not set")
    if axis is None:
        return
    start = node.axis(int(axis), len(shape))
    after = len(shape) - start - len(other)
    if after < 0:
        node.wrong(f"a tensor of shape {other} does not fit into {shape} from axis {start}")
    node.inputs[1] = node.reshape(node.input(1), (*other, *(1,) * after))


def _slope(node: Node) -> None:
    slope = node.shape(1)
    if len(slope) == 1 and slope != (1,) and node.rank(0) > 1:
        node.inputs[1] = node.reshape(node.input(1), (*slope, *(1,) * (node.rank(0) - 2)))


def _statistics(node: Node) -> None:
    if not node.attributes.pop("is_test", 0):
        node.unsupported("in training mode is not supported", "Export the model in inference mode (is_test=1)")


def _cast(node: Node) -> None:
    if node.opset < 6:
        name = node.string("to")
        if name not in TensorProto.DataType.DESCRIPTOR.values_by_name:
            node.wrong(f"unknown type '{name}'")
        node.attributes["to"] = TensorProto.DataType.Value(name)


def _pads(node: Node) -> None:
    if "paddings" in node.attributes:
        node.attributes["pads"] = node.attributes.pop("paddings")


def _shape(node: Node) -> None:
    if node.opset < 5:
        node.inputs[1:] = [int64(node, node.integers("shape"))]
        del node.attributes["shape"]


def _whole(node: Node, *indices: int) -> None:
    """Convert known inputs that opset 1 stores in the data's dtype to int64."""
    for index in indices:
        if not node.dtype(index).startswith("int"):
            values = node.value(index, "sizes")
            if (values % 1 != 0).any():
                node.wrong(f"input {index} must be whole numbers, got {values.reshape(-1).tolist()}")
            node.inputs[index] = int64(node, values)


def _split(node: Node) -> None:
    if node.has(1):
        _whole(node, 1)
        node.attributes["split"] = node.int_values(1, "split")
        del node.inputs[1:]


def _tile(node: Node) -> None:
    if node.opset < 6:
        _whole(node, 1, 2)
        tiles, axis = node.int_values(1, "tiles"), node.int_values(2, "axis")
        if len(tiles) != 1 or len(axis) != 1:
            node.wrong("'tiles' and 'axis' must be one number each")
        repeats = [1] * node.rank(0)
        repeats[node.axis(axis[0], node.rank(0))] = tiles[0]
        node.inputs[1:] = [int64(node, repeats)]


def _scales(node: Node) -> None:
    if "scales" not in node.attributes:
        height, width = node.real("height_scale"), node.real("width_scale")
        del node.attributes["height_scale"], node.attributes["width_scale"]
        node.attributes["scales"] = (1.0, 1.0, height, width)


def _power(node: Node) -> None:
    if "p" in node.attributes:
        if node.attributes["p"] % 1 != 0:
            node.unsupported(f"with p={node.attributes['p']} is not supported")
        node.attributes["p"] = int(node.attributes["p"])


_CHANGES: dict[str, Callable[[Node], object]] = {
    "BatchNormalization": _statistics,
    "Cast": _cast,
    "Gemm": lambda node: node.attributes.pop("broadcast", None),
    "GlobalLpPool": _power,
    "LpPool": _power,
    "PRelu": _slope,
    "Pad": _pads,
    "Reshape": _shape,
    "Split": _split,
    "Tile": _tile,
    "Upsample": _scales,
}
