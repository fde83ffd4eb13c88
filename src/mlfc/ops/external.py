"""Operators that no code of the compiler computes, only an external code generator."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import checked_shape, tensors
from mlfc.relay.ir import Attrs, TensorType, Type
from mlfc.relay.op import OPERATORS, Attr, Kind, Operator
from mlfc.support import dtypes


def _infer_onnx_call(types: Sequence[Type], attrs: Attrs) -> TensorType:
    tensors("onnx.call", types)
    shape, dtype = checked_shape("onnx.call", attrs["shape"]), attrs["dtype"]
    if not isinstance(dtype, str) or dtype not in dtypes.SCALARS:
        raise TypeCheckError(f"onnx.call: there is no dtype '{dtype}'")
    if not isinstance(attrs["model"], str) or not isinstance(attrs["output"], int):
        raise TypeCheckError("onnx.call: the model must be text, and the output a number")
    return TensorType(shape, dtype)


OPERATORS.add(
    "onnx.call",
    Operator(
        "onnx.call", None, _infer_onnx_call, Kind.EXTERNAL,
        (Attr("model"), Attr("shape"), Attr("dtype"), Attr("output", 0)), contract="ONNX Runtime's",
        doc="One output of an ONNX node, which ONNX Runtime computes; the node is a model in base64.",
    ),
)  # fmt: skip
