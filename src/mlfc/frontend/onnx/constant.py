"""Constants, and what follows from shapes alone."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.node import Node
from mlfc.frontend.onnx.table import importer
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay.ir import Constant, Expr
from mlfc.support import cost, dtypes

_ELEMENT_LIMIT = 1 << 24
_LARGEST_ITEM = 8


@importer("Constant")
def _constant(node: Node) -> Expr:
    tensor = node.attribute("value")
    if isinstance(tensor, np.ndarray):
        return Constant(tensor, None, node.span)
    kinds = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    for name, dtype in kinds.items():
        value = node.attribute(name)
        if value is not None:
            return node.constant(value, dtype)
    return node.unsupported(
        "without a tensor or numbers is not supported", "Strings and sparse tensors have no place in a compiled model"
    )


@importer("ConstantOfShape")
def _constant_of_shape(node: Node) -> Expr:
    fill = node.attribute("value")
    value = np.zeros(1, np.float32) if fill is None else np.asarray(fill)
    shape = node.int_values(0, "input")
    if value.size != 1 or any(extent < 0 for extent in shape):
        node.wrong(f"cannot fill the shape {shape} with a value of {value.size} elements")
    return Constant(np.full(_checked(node, shape), value.reshape(())), None, node.span)


def _checked(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    if prod(shape) > _ELEMENT_LIMIT:
        node.unsupported(f"makes a constant of shape {shape}, which is too large")
    cost.require("constants", prod(shape) * _LARGEST_ITEM, node.name)
    return shape


@importer("Shape")
def _shape(node: Node) -> Expr:
    shape = node.shape(0)
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    return node.constant(np.asarray(shape[start:end], np.int64), "int64")


@importer("Size")
def _size(node: Node) -> Expr:
    return node.constant(prod(node.shape(0)), "int64")


@importer("Range", ignores=("stash_type",))
def _range(node: Node) -> Expr:
    start, limit, delta = (
        node.value(index, what).reshape(()) for index, what in enumerate(("start", "limit", "delta"))
    )
    if float(delta) == 0.0 or not np.isfinite(float(limit) - float(start)):
        node.wrong("start and limit must be finite and delta must not be zero")
    exact = start.dtype.kind in "iu"
    distance = int(limit) - int(start) if exact else float(limit) - float(start)
    step = int(delta) if exact else float(delta)
    count = max(0, -int(-distance // step))
    _checked(node, (count,))
    return Constant((start + np.arange(count).astype(start.dtype) * delta).astype(start.dtype), None, node.span)


@importer("EyeLike")
def _eye_like(node: Node) -> Expr:
    if node.rank(0) != 2:
        node.wrong(f"a tensor of shape {node.shape(0)} is not a matrix")
    code = node.attribute("dtype")
    dtype = node.dtype(0) if code is None else dtype_name(code, node.name)
    rows, columns = _checked(node, node.shape(0))
    eye: npt.NDArray[Any] = np.eye(rows, columns, min(max(node.integer("k", 0), -rows), columns))
    return Constant(eye.astype(dtypes.to_numpy(dtype)), None, node.span)


@importer("NonZero")
def _non_zero(node: Node) -> Expr:
    return node.constant(np.stack(np.nonzero(node.value(0, "X"))), "int64")
