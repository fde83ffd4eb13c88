"""Operators that no code of the compiler computes, only an external code generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import tensors
from mlfc.relay.ir import TensorType, Type
from mlfc.relay.op import OPERATORS, Attr, Kind, Operator
from mlfc.support import dtypes


def _infer_onnx_call(types: Sequence[Type], attrs: Mapping[str, Any]) -> TensorType:
    tensors("onnx.call", types)
    shape, dtype = attrs["shape"], attrs["dtype"]
    if not isinstance(shape, tuple) or any(not isinstance(extent, int) or extent < 0 for extent in shape):
        raise TypeCheckError(f"onnx.call: shape {shape} must be integers of at least 0")
    if not isinstance(dtype, str) or dtype not in dtypes.SCALARS:
        raise TypeCheckError(f"onnx.call: there is no dtype '{dtype}'")
    if not isinstance(attrs["model"], str) or not isinstance(attrs["output"], int):
        raise TypeCheckError("onnx.call: the model must be text, and the output a number")
    return TensorType(shape, dtype)


OPERATORS.add(
    "onnx.call",
    Operator(
        "onnx.call",
        None,
        _infer_onnx_call,
        Kind.EXTERNAL,
        attrs=(Attr("model"), Attr("shape"), Attr("dtype"), Attr("output", 0)),
        contract="ONNX Runtime's",
        doc="One output of an ONNX node, which ONNX Runtime computes; the node is a model in base64.",
    ),
)
