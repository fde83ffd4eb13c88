"""Builder of small TFLite models, with which tests compare single operators with LiteRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite
from flatbuffers import flexbuffers

DTYPES = {
    "float32": tflite.TensorType.FLOAT32, "float16": tflite.TensorType.FLOAT16, "int32": tflite.TensorType.INT32,
    "uint8": tflite.TensorType.UINT8, "int64": tflite.TensorType.INT64, "bool": tflite.TensorType.BOOL,
    "int16": tflite.TensorType.INT16, "int8": tflite.TensorType.INT8, "resource": tflite.TensorType.RESOURCE,
    "complex64": tflite.TensorType.COMPLEX64,
    "uint32": tflite.TensorType.UINT32, "uint64": tflite.TensorType.UINT64,
    "int4": tflite.TensorType.INT4, "int2": 19,
}  # fmt: skip


@dataclass
class Level:
    """A level of a sparse tensor: dense, or the indices below each node of the previous level."""

    size: int = 0
    segments: Any = None
    indices: Any = None  # of the dtype in the file


@dataclass
class Sparsity:
    """The layout of a sparse tensor's values in its buffer."""

    order: Sequence[int]
    levels: Sequence[Level]
    blocks: Sequence[int] = ()


@dataclass
class T:
    """A tensor: with a value it is a constant; with scales and zero points it is quantized."""

    name: str
    shape: Sequence[int]
    dtype: str = "float32"
    value: Any = None
    scale: Any = None
    zero: Any = 0
    axis: int = 0
    signature: Sequence[int] | None = None
    is_variable: bool = False
    sparsity: Sparsity | None = None


@dataclass
class Op:
    """An operator: BuiltinOperator's name, tensor names ("" for an absent one), fields of its options table.

    The `code` of a custom operator is ``CUSTOM`` followed by its name; its options are `custom`, a map or bytes.
    """

    code: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    options: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    intermediates: Sequence[str] = ()
    custom: Mapping[str, Any] | bytes | None = None


def _vector(builder: flatbuffers.Builder, values: Sequence[int]) -> int:
    return builder.CreateNumpyVector(np.asarray(values, np.int32))


def _offsets(builder: flatbuffers.Builder, items: Sequence[int]) -> int:
    builder.StartVector(4, len(items), 4)
    for item in reversed(items):
        builder.PrependUOffsetTRelative(item)
    return builder.EndVector()


def _table(builder: flatbuffers.Builder, kind: str, fields: Mapping[str, Any]) -> int:
    """Write a table; its vectors of non-integers must already be written."""
    writers = {list: _vector, tuple: _vector, str: flatbuffers.Builder.CreateString}
    ready = {
        name: writers[type(value)](builder, value) if type(value) in writers else value
        for name, value in fields.items()
    }
    module = getattr(tflite, kind)
    starts = __import__(f"tflite.{kind}", fromlist=[kind])
    assert module is not None
    starts.Start(builder)
    for name, value in ready.items():
        getattr(starts, f"Add{name}")(builder, value)
    return starts.End(builder)


def _contents(tensor: T) -> bytes:
    """Return the value as stored in the file: elements of 4 or 2 bits are packed, lowest bits first."""
    if tensor.dtype not in ("int4", "int2"):
        return np.ascontiguousarray(np.asarray(tensor.value, tensor.dtype)).tobytes()
    width = int(tensor.dtype[-1])
    codes = np.ravel(tensor.value).astype(np.int64) & ((1 << width) - 1)
    padded = np.pad(codes, (0, -len(codes) % (8 // width))).reshape(-1, 8 // width)
    return bytes((padded << (np.arange(8 // width) * width)).sum(axis=1).astype(np.uint8))


def _quantization(builder: flatbuffers.Builder, tensor: T) -> int | None:
    if tensor.scale is None:
        return None
    scales = np.atleast_1d(np.asarray(tensor.scale, np.float32))
    zeros = np.broadcast_to(np.asarray(tensor.zero, np.int64), scales.shape)
    fields = {
        "Scale": builder.CreateNumpyVector(scales),
        "ZeroPoint": builder.CreateNumpyVector(np.ascontiguousarray(zeros)),
        "QuantizedDimension": tensor.axis,
    }
    return _table(builder, "QuantizationParameters", fields)


_INDICES = {"int32": (1, "Int32Vector"), "uint16": (2, "Uint16Vector"), "uint8": (3, "Uint8Vector")}


def _level(builder: flatbuffers.Builder, level: Level) -> int:
    if level.segments is None:
        return _table(builder, "DimensionMetadata", {"Format": 0, "DenseSize": level.size})
    fields: dict[str, Any] = {"Format": 1}
    for name, values in (("Segments", level.segments), ("Indices", level.indices)):
        number, kind = _INDICES[np.asarray(values).dtype.name]
        fields[f"Array{name}Type"] = number
        fields[f"Array{name}"] = _table(builder, kind, {"Values": builder.CreateNumpyVector(np.asarray(values))})
    return _table(builder, "DimensionMetadata", fields)


def _sparsity(builder: flatbuffers.Builder, sparsity: Sparsity) -> int:
    fields = {
        "DimMetadata": _offsets(builder, [_level(builder, level) for level in sparsity.levels]),
        "TraversalOrder": _vector(builder, sparsity.order),
    }
    if sparsity.blocks:
        fields["BlockMap"] = _vector(builder, sparsity.blocks)
    return _table(builder, "SparsityParameters", fields)


@dataclass
class Graph:
    """A subgraph, which may have a signature."""

    tensors: Sequence[T]
    ops: Sequence[Op]
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    signature: str | None = None


def build(tensors: Sequence[T], ops: Sequence[Op], inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """Return the file of a model of one subgraph."""
    return build_graphs(Graph(tensors, ops, inputs, outputs))


def build_graphs(*graphs: Graph) -> bytes:
    """Return the file of a model of several subgraphs."""
    builder = flatbuffers.Builder(1024)
    buffers = [_table(builder, "Buffer", {})]
    codes = sorted({(op.code, op.version) for graph in graphs for op in graph.ops})
    subgraphs = [_subgraph(builder, graph, codes, buffers) for graph in graphs]
    entries = [_code(builder, code, version) for code, version in codes]
    signed = [_signature(builder, graph, number) for number, graph in enumerate(graphs) if graph.signature is not None]
    more = {"SignatureDefs": _offsets(builder, signed)} if signed else {}
    model = _table(builder, "Model", {
        "Version": 3, "OperatorCodes": _offsets(builder, entries), "Subgraphs": _offsets(builder, subgraphs),
        "Buffers": _offsets(builder, buffers), **more,
    })  # fmt: skip
    builder.Finish(model, b"TFL3")
    return bytes(builder.Output())


def _signature(builder: flatbuffers.Builder, graph: Graph, number: int) -> int:
    index = {tensor.name: position for position, tensor in enumerate(graph.tensors)}

    def named(names: Sequence[str], prefix: str) -> int:
        entries = [
            _table(builder, "TensorMap", {"Name": f"{prefix}{place}", "TensorIndex": index[name]})
            for place, name in enumerate(names)
        ]
        return _offsets(builder, entries)

    fields = {"Inputs": named(graph.inputs, "in"), "Outputs": named(graph.outputs, "out"), "SubgraphIndex": number}
    return _table(builder, "SignatureDef", {**fields, "SignatureKey": graph.signature})


def _subgraph(builder: flatbuffers.Builder, graph: Graph, codes: Sequence[tuple[str, int]], buffers: list[int]) -> int:
    index = {tensor.name: position for position, tensor in enumerate(graph.tensors)}
    written = []
    for tensor in graph.tensors:
        number = 0
        if tensor.value is not None:
            data = _contents(tensor)
            number = len(buffers)
            buffers.append(_table(builder, "Buffer", {"Data": builder.CreateByteVector(data)}))
        fields: dict[str, Any] = {
            "Shape": _vector(builder, tensor.shape),
            "Name": builder.CreateString(tensor.name),
            "Type": DTYPES[tensor.dtype],
            "Buffer": number,
        }
        if tensor.signature is not None:
            fields["ShapeSignature"] = _vector(builder, tensor.signature)
        if tensor.is_variable:
            fields["IsVariable"] = True
        quantization = _quantization(builder, tensor)
        if quantization is not None:
            fields["Quantization"] = quantization
        if tensor.sparsity is not None:
            fields["Sparsity"] = _sparsity(builder, tensor.sparsity)
        written.append(_table(builder, "Tensor", fields))
    operators = [_operator(builder, op, codes, index) for op in graph.ops]
    return _table(builder, "SubGraph", {
        "Tensors": _offsets(builder, written), "Operators": _offsets(builder, operators),
        "Inputs": _vector(builder, [index[name] for name in graph.inputs]),
        "Outputs": _vector(builder, [index[name] for name in graph.outputs]),
    })  # fmt: skip


def _code(builder: flatbuffers.Builder, code: str, version: int) -> int:
    builtin, _, custom = code.partition(" ")
    number = getattr(tflite.BuiltinOperator, builtin)
    fields = {"BuiltinCode": number, "DeprecatedBuiltinCode": min(number, 127), "Version": version}
    return _table(builder, "OperatorCode", fields | ({"CustomCode": custom} if custom else {}))


def _operator(builder: flatbuffers.Builder, op: Op, codes: Sequence[tuple[str, int]], index: Mapping[str, int]) -> int:
    fields: dict[str, Any] = {
        "OpcodeIndex": codes.index((op.code, op.version)),
        "Inputs": _vector(builder, [index[name] if name else -1 for name in op.inputs]),
        "Outputs": _vector(builder, [index[name] for name in op.outputs]),
    }
    if op.intermediates:
        fields["Intermediates"] = _vector(builder, [index[name] for name in op.intermediates])
    if op.custom is not None:
        fields["CustomOptions"] = builder.CreateByteVector(
            op.custom if isinstance(op.custom, bytes) else bytes(flexbuffers.Dumps(op.custom))
        )
    if op.options is not None:
        fields["BuiltinOptions"] = _table(builder, op.options, op.fields)
        fields["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, op.options)
    return _table(builder, "Operator", fields)
