"""Operators that only external code generators compute."""

from __future__ import annotations

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import checked_shape, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind, Trait
from mlfc.support import dtypes


def _infer_onnx_call(name: str, attrs: Attrs, *_: TensorType) -> TensorType:
    shape, dtype = checked_shape(name, attrs["shape"]), attrs["dtype"]
    if not isinstance(dtype, str) or dtype not in dtypes.SCALARS:
        raise TypeCheckError(f"{name}: unknown dtype '{dtype}'")
    if not isinstance(attrs["model"], str) or not isinstance(attrs["output"], int):
        raise TypeCheckError(f"{name}: expected the model as text and the output as a number")
    return TensorType(shape, dtype)


declare("onnx.call", None, _infer_onnx_call, Kind.EXTERNAL,
        (Attr("model"), Attr("shape"), Attr("dtype"), Attr("output", 0)), contract="ONNX Runtime's",
        traits=Trait.NOT_IN_TVM,
        doc="One output of an ONNX node, which ONNX Runtime computes; the node is a model in base64.")  # fmt: skip
