"""ONNX Runtime as a generator: nodes that the compiler does not support become a runtime module that contains them."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlfc.byoc.generator import GENERATORS, Composite, Generator, Subgraph
from mlfc.byoc.onnx_graphs import rename_captured
from mlfc.byoc.pattern import op
from mlfc.errors import ModelError, UnsupportedError
from mlfc.relay import ir as relay
from mlfc.support import dtypes
from mlfc.support.dims import Shape
from mlfc.tir.ir import External

if TYPE_CHECKING:  # every build imports this file, and few models have such nodes
    import onnx

NAME = "onnxruntime"
_LENGTH = struct.Struct("<Q")
# limit for weights: protobuf messages have at most 2 GiB, and the nodes need some of it
_MOST_BYTES = (1 << 31) - (16 << 20)


def node_model(text: str, place: str) -> onnx.ModelProto:
    """Return the model in the attribute ``model`` of an ``onnx.call``; raise ModelError if it is invalid."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError, ValueError) as error:
        raise ModelError("the ONNX node of an onnx.call is damaged", place=place) from error
    if len(model.graph.node) != 1:
        raise ModelError(f"the model of an onnx.call has {len(model.graph.node)} nodes, not 1", place=place)
    return model


def _generate(subgraph: Subgraph) -> External:
    import onnx
    from onnx import helper, numpy_helper

    names: dict[relay.Expr, str] = dict(
        zip(subgraph.function.params, (buffer.name for buffer in subgraph.inputs), strict=True)
    )
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    opsets: dict[str, int] = {}
    for number, call in enumerate(subgraph.calls()):
        place = ", ".join(call.span.nodes) or "onnx.call"
        model = node_model(str(call.attrs["model"]), place)
        _add_opsets(opsets, model, place)
        node = onnx.NodeProto()
        node.CopyFrom(model.graph.node[0])
        _check_operands(node, model.graph.input, call, place)
        _check_size([operand for operand in (*names, *call.args) if isinstance(operand, relay.Constant)], place)
        for operand in call.args:
            if isinstance(operand, relay.Constant) and operand not in names:
                names[operand] = f"constant{len(constants)}"
                constants.append(numpy_helper.from_array(np.asarray(operand.data), names[operand]))
        given = iter(call.args)
        operands = [next(given) if name else None for name in node.input]
        # after its inputs the node's model has the tensors that its graphs capture
        outer = model.graph.input[sum(map(bool, node.input)) :]
        rename_captured(node, {item.name: names[operand] for item, operand in zip(outer, given, strict=True)})
        node.input[:] = [names[operand] if operand is not None else "" for operand in operands]
        wanted = int(call.attrs["output"])
        # unused outputs stay as well: operators have a minimum number of outputs
        results = [f"value{number}_{index}" if name else "" for index, name in enumerate(node.output)]
        names[call] = results[wanted] = "output" if call is subgraph.function.body else results[wanted]
        node.output[:] = results
        nodes.append(node)
    inputs = [_typed(names[param], param) for param in subgraph.function.params]
    graph = helper.make_graph(nodes, "subgraph", inputs, [_typed("output", subgraph.function.body)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*item) for item in sorted(opsets.items())])
    model.ir_version = ir_version(opsets)
    return External(NAME, module=model.SerializeToString(deterministic=True))


def _check_operands(node: onnx.NodeProto, inputs: Sequence[onnx.ValueInfoProto], call: relay.Call, place: str) -> None:
    count, first = len(call.args), sum(map(bool, node.input))
    sound = first <= len(inputs) == count and not {item.name for item in inputs[first:]} & set(node.input)
    if not sound or not 0 <= call.attrs["output"] < len(node.output):
        raise ModelError("the operands of an onnx.call do not match its ONNX node", place=place)


def _check_size(constants: Iterable[relay.Constant], place: str) -> None:
    """Raise UnsupportedError for weights that exceed the size of a protobuf file."""
    nbytes = sum(item.data.nbytes for item in dict.fromkeys(constants))
    if nbytes > _MOST_BYTES:
        raise UnsupportedError(
            f"{nbytes:,} bytes of weights for ONNX Runtime exceed the limit of {_MOST_BYTES:,} for ONNX models",
            place=place,
            next_step="Pass them as inputs, or split the model",
        )


def _add_opsets(opsets: dict[str, int], model: onnx.ModelProto, place: str) -> None:
    for item in model.opset_import:
        if opsets.setdefault(item.domain, item.version) != item.version:
            raise UnsupportedError(
                f"nodes of the opsets {opsets[item.domain]} and {item.version} cannot share a module", place=place
            )


def ir_version(opsets: Mapping[str, int]) -> int:
    """Return the oldest version of ONNX's file format with these opsets, so that older runtimes accept the model."""
    from onnx import helper

    known = [helper.make_opsetid("", version) for domain, version in opsets.items() if not domain]
    return int(helper.find_min_ir_version_for(known, ignore_unknown=True)) if known else 8


def onnx_shape(shape: Shape) -> list[int | None]:
    """Return a shape for ONNX; dynamic dimensions are None."""
    return [extent if isinstance(extent, int) else None for extent in shape]


def _typed(name: str, expr: relay.Expr) -> onnx.ValueInfoProto:
    from onnx import helper

    kind = relay.tensor_type(expr)
    element = helper.np_dtype_to_tensor_dtype(dtypes.to_numpy(kind.dtype))
    return helper.make_tensor_value_info(name, element, onnx_shape(kind.shape))


def _module_bytes(symbol: str, payload: bytes) -> bytes:
    """Return the serialized module of kind ``onnxruntime``; see `runtime.onnxruntime_module`."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in (symbol.encode(), payload))


_TABLE = (Composite("call", op("onnx.call")),)
GENERATORS.add(
    NAME, Generator(NAME, _TABLE, _generate, merges=True, always=True, module_bytes=_module_bytes, takes_open=True)
)
