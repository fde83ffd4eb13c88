"""Check a node against ONNX's operator schemas: its attributes and the dtypes of its inputs."""

from __future__ import annotations

from functools import cache

from onnx import TensorProto, defs

from mlfc.frontend.onnx.node import Node
from mlfc.frontend.onnx.table import ML
from mlfc.frontend.onnx.tensors import DTYPES
from mlfc.relay.ir import TensorType

_NEWEST = {"": defs.onnx_opset_version(), ML: defs.onnx_ml_opset_version()}
_OF_TEXT = {f"tensor({TensorProto.DataType.Name(code).lower()})": dtype for code, dtype in DTYPES.items()}


@cache
def _schema(domain: str, operator: str, opset: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(operator, opset, domain)
    except defs.SchemaError:
        return None


def check_schema(node: Node, domain: str, operator: str) -> None:
    """Raise ModelError for an attribute that the node's opset lacks, or a dtype that no opset of its operator allows.

    Operators of other domains, and opsets that the installed onnx does not define, are not checked.
    """
    newest = _NEWEST.get(domain, 0)
    schema, latest = (_schema(domain, operator, opset) for opset in (node.opset, newest))
    if schema is None or latest is None:
        return
    unknown = sorted(set(node.attributes) - set(schema.attributes)) if node.opset <= newest else []
    if unknown:
        node.wrong(f"opset {node.opset} does not define the attribute '{unknown[0]}'")
    for index, value in enumerate(node.inputs if latest.inputs else ()):
        formals = [each.inputs[min(index, len(each.inputs) - 1)] for each in (latest, schema) if each.inputs]
        formal = formals[0]
        dtypes = sorted({_OF_TEXT[text] for each in formals for text in each.types if text in _OF_TEXT})
        if value is not None and isinstance(value.type, TensorType) and dtypes and value.type.dtype not in dtypes:
            node.wrong(f"input '{formal.name}' has the dtype {value.type.dtype}; expected {' or '.join(dtypes)}")
