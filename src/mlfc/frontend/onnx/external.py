"""ONNX nodes that are kept as such, to be run by ONNX Runtime, because the compiler does not support them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from mlfc.byoc.onnx_graphs import inner_graphs, isolate, refers_to_function
from mlfc.errors import MlfcError, UnsupportedError
from mlfc.frontend.onnx import table
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, Span, TensorType
from mlfc.support import dtypes
from mlfc.support.dims import Dim, dims_in
from mlfc.support.text import printable

# the largest constants that are passed to shape inference
_LOOKED_AT = 1 << 16
# domains whose operators ONNX Runtime implements
_DOMAINS = ("", table.ML, table.MICROSOFT, "com.microsoft.nchwc", "com.microsoft.experimental", "ai.onnx.training")
_LOOPS = ("Loop", "Scan", "If")


def external_calls(
    proto: onnx.NodeProto,
    operands: Sequence[Expr | None],
    captured: Mapping[str, Expr],
    opsets: Mapping[str, int],
    declared: Mapping[str, onnx.ValueInfoProto],
    name: str,
) -> list[Expr | None]:
    """Return the outputs of a node as calls of ``onnx.call``, None for unused ones.

    `operands` has None for omitted inputs; `captured` are values that the node's graphs capture, by name. `opsets` are
    versions by domain. `declared` are the types that the model declares. They are trusted for loops, where ONNX's
    inference does not check that carried tensors keep their shapes, and for unknown domains; the node's runtime checks
    them. Raises UnsupportedError if the node has attributes of a function, or the shape of an output depends on data.
    Operands may have dynamic dimensions; the dimensions of the outputs are then among these, or static.
    """
    place = f"node '{name}'"
    cause = None
    if refers_to_function(proto):
        cause = f"ONNX Runtime cannot run {proto.op_type} alone: it reads an attribute of a function"
    elif table.normal_domain(proto.domain) not in _DOMAINS:
        cause = f"ONNX Runtime has no operator {proto.op_type} of the domain '{printable(proto.domain)}'"
    elif any(value and not isinstance(value.type, TensorType) for value in (*operands, *captured.values())):
        cause = f"ONNX Runtime cannot run {proto.op_type} alone: it reads a sequence"
    if cause is not None:
        raise UnsupportedError(cause, place=place)
    node = onnx.NodeProto()
    node.CopyFrom(proto)
    node.name = ""
    for title, names in (("input", node.input), ("output", node.output)):
        names[:] = [f"{title}{index}" if name else "" for index, name in enumerate(names)]
    outer = {tensor: f"outer{index}" for index, tensor in enumerate(captured)}
    isolate(node, outer)
    named = {title: operand for title, operand in zip(node.input, operands, strict=True) if operand is not None}
    named.update({title: captured[tensor] for tensor, title in outer.items()})
    model = _model(node, named, opsets)
    given = list(named.values())
    # names of dynamic dimensions, by which ONNX's inference identifies them
    dims = dict.fromkeys(dims_in(ir.tensor_type(operand).shape for operand in given))
    meant = {f"extent{number}": extent for number, extent in enumerate(dims)}
    titles = {extent: title for title, extent in meant.items()}
    types = _output_types(model, named, titles, place)
    text = base64.b64encode(model.SerializeToString(deterministic=True)).decode()
    calls: list[Expr | None] = []
    for index, (output, tensor) in enumerate(zip(node.output, proto.output, strict=True)):
        if not output:
            calls.append(None)
            continue
        found = types.get(output)
        if not _is_known(found, meant):
            found = _known_output(node, index, given, titles) or found
        is_open = any(inner_graphs(proto)) or bool(table.normal_domain(proto.domain))
        if is_open and not _is_known(found, meant) and _is_known(declared.get(tensor), {}):
            found = declared[tensor]
        kind = _checked(found, meant, tensor, proto.op_type, place)
        attrs = {"model": text, "shape": kind.shape, "dtype": kind.dtype, "output": index}
        calls.append(ir.call("onnx.call", given, attrs, span=Span((name,), tensor)))
    return calls


def _known_output(
    node: onnx.NodeProto, index: int, operands: Sequence[Expr], names: Mapping[Dim, str]
) -> onnx.ValueInfoProto | None:
    """Return the type of an output that ONNX's inference does not determine although its shape is obvious."""
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    extents = ir.tensor_type(operands[0]).shape if operands else ()
    shape = [names[extent] if isinstance(extent, Dim) else extent for extent in extents]
    kinds: list[tuple[int, Sequence[int | str]]] = []
    if (node.domain, node.op_type) == (table.ML, "TreeEnsembleClassifier") and len(shape) == 2:
        labels = len(attributes.get("classlabels_int64s", ()))
        kinds = [(onnx.TensorProto.INT64, shape[:1]), (onnx.TensorProto.FLOAT, (shape[0], labels))] if labels else []
    elif (node.domain, node.op_type) == (table.ML, "TreeEnsembleRegressor") and len(shape) == 2:
        kinds = [(onnx.TensorProto.FLOAT, (shape[0], attributes.get("n_targets", 1)))]
    elif (node.domain, node.op_type) == (table.MICROSOFT, "MatMulNBits") and shape and "N" in attributes:
        element = helper.np_dtype_to_tensor_dtype(dtypes.to_numpy(ir.tensor_type(operands[0]).dtype))
        kinds = [(element, (*shape[:-1], attributes["N"]))]
    if index >= len(kinds):
        return None
    element, wanted = kinds[index]
    return helper.make_tensor_value_info("", element, list(wanted))


def _model(node: onnx.NodeProto, operands: Mapping[str, Expr], opsets: Mapping[str, int]) -> onnx.ModelProto:
    """Return a model of one node; its inputs, followed by the captured values, have types, its outputs do not."""
    from mlfc.byoc.onnxruntime import ir_version, onnx_shape

    inputs = []
    for name, operand in operands.items():
        kind = ir.tensor_type(operand)
        element = helper.np_dtype_to_tensor_dtype(dtypes.to_numpy(kind.dtype))
        inputs.append(helper.make_tensor_value_info(name, element, onnx_shape(kind.shape)))
    graph = helper.make_graph([node], "node", inputs, [])
    needed = {domain: opsets.get(domain, 1) for domain in _domains(node)}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*item) for item in sorted(needed.items())])
    model.ir_version = ir_version(needed)
    return model


def _domains(node: onnx.NodeProto) -> set[str]:
    inside = (inner for graph in inner_graphs(node) for inner in graph.node)
    return {"", table.normal_domain(node.domain)}.union(*map(_domains, inside))


def _output_types(
    model: onnx.ModelProto, operands: Mapping[str, Expr], names: Mapping[Dim, str], place: str
) -> dict[str, onnx.ValueInfoProto]:
    """Return the output types that ONNX's own inference determines; it is given the values of small constants."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for item, operand in zip(known.graph.input, operands.values(), strict=True):
        for extent, dimension in zip(ir.tensor_type(operand).shape, item.type.tensor_type.shape.dim, strict=True):
            if isinstance(extent, Dim):
                dimension.dim_param = names[extent]
    for name, operand in operands.items():
        if isinstance(operand, Constant) and operand.data.size <= _LOOKED_AT:
            known.graph.initializer.append(numpy_helper.from_array(np.asarray(operand.data), name))
    known.graph.output.extend(onnx.ValueInfoProto(name=name) for name in known.graph.node[0].output if name)
    try:
        inferred = shape_inference.infer_shapes(known, check_type=True, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise UnsupportedError(f"ONNX cannot infer the shapes of its outputs: {error}", place=place) from error
    return {value.name: value for value in inferred.graph.output}


def _checked(
    value: onnx.ValueInfoProto | None, meant: Mapping[str, Dim], tensor: str, operator: str, place: str
) -> TensorType:
    if value is None or not value.type.HasField("tensor_type"):
        raise UnsupportedError(f"the output '{tensor}' of {operator} is not a tensor", place=place)
    kind = value.type.tensor_type
    if not _is_known(value, meant):
        raise UnsupportedError(
            f"the shape of the output '{tensor}' of {operator} depends on data",
            place=place,
            next_step="Declare it in the model (onnx.shape_inference, or value_info), if it is always the same"
            if operator in _LOOPS
            else "Cut the model before this node and do the step in the program that uses the result",
        )
    shape = tuple(item.dim_value if item.HasField("dim_value") else meant[item.dim_param] for item in kind.shape.dim)
    try:
        return TensorType(shape, dtype_name(kind.elem_type, place))
    except MlfcError as error:
        raise UnsupportedError(f"the output '{tensor}' of {operator}: {error.cause}", place=place) from error


def _is_known(value: onnx.ValueInfoProto | None, meant: Mapping[str, Dim]) -> bool:
    """Return whether all dimension sizes of a tensor are numbers, or names of operands' dimensions."""
    if value is None or not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return False
    return all(
        item.dim_value >= 0 if item.HasField("dim_value") else item.dim_param in meant
        for item in value.type.tensor_type.shape.dim
    )
