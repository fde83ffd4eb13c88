"""Parser of TFLite files. It runs inside `guarded`, because flatbuffers does not check offsets against the file size.

In the result, indices are in range, shapes are nonnegative, and constants have exactly the expected number of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tflite

from mlfc.errors import InputError, MlfcError, ModelError, OptionError, Remedy, UnsupportedError, unknown
from mlfc.support import cost, dtypes
from mlfc.support.dims import UndecidedError

IDENTIFIER = b"TFL3"
CONTROL_FLOW = frozenset(("WHILE", "IF", "CALL"))
_INT2, _UINT4 = 19, 20  # defined in newer schemas
_DTYPES = {
    tflite.TensorType.FLOAT32: "float32", tflite.TensorType.FLOAT16: "float16", tflite.TensorType.INT32: "int32",
    tflite.TensorType.UINT8: "uint8", tflite.TensorType.INT64: "int64", tflite.TensorType.BOOL: "bool",
    tflite.TensorType.INT16: "int16", tflite.TensorType.INT8: "int8", tflite.TensorType.FLOAT64: "float64",
    tflite.TensorType.UINT32: "uint32", tflite.TensorType.UINT16: "uint16", tflite.TensorType.UINT64: "uint64",
    tflite.TensorType.INT4: "int4", _INT2: "int2", _UINT4: "uint4",
}  # fmt: skip
_CODE_NAMES = {
    value: name for name, value in vars(tflite.BuiltinOperator).items() if isinstance(value, int) and name.isupper()
}
_TYPE_NAMES = {value: name for name, value in vars(tflite.TensorType).items() if isinstance(value, int)}
# exceptions that flatbuffers, numpy and struct raise for invalid offsets and lengths
_LIES = (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError, KeyError, MemoryError)
_MAX_RANK = 8
_DENSE, _COMPRESSED = 0, 1  # kinds of levels of sparse tensors
_VECTORS = {1: tflite.Int32Vector, 2: tflite.Uint16Vector, 3: tflite.Uint8Vector}
_POSITION_BYTES = 8
_MAX_BYTES = 1 << 32


@dataclass(frozen=True, eq=False)
class TensorQuantization:
    """Scales (float32) and zero points (int64), per tensor or per index of `axis`."""

    scales: npt.NDArray[Any]
    zero_points: npt.NDArray[Any]
    axis: int


@dataclass(frozen=True, eq=False)
class TfliteTensor:
    """A tensor of the file; `data` is its value if it is a constant. The dtype is ``""`` if it is unsupported."""

    index: int
    name: str
    shape: tuple[int, ...]
    open_axes: frozenset[int]  # dynamic axes; their sizes in the shape are examples
    dtype: str
    type_name: str
    data: npt.NDArray[Any] | None
    quantization: TensorQuantization | None
    is_variable: bool = False  # written by operators; its value persists between runs


@dataclass(frozen=True, eq=False)
class OperatorRecord:
    """An operator of the file; an omitted optional input is -1."""

    index: int
    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    table: Any
    intermediates: tuple[int, ...] = ()  # tensors with the scales of internal values
    custom: bytes = b""  # options of a custom operator

    def options(self, kind: str) -> Any:
        """Return the options as the table class `kind`; None if the operator has no options."""
        if self.table is None:
            return None
        options = getattr(tflite, kind)()
        options.Init(self.table.Bytes, self.table.Pos)
        return options


@dataclass(frozen=True, eq=False)
class SchemaSubgraph:
    """Tensors and operators of a subgraph; indices refer to its own tensors."""

    tensors: tuple[TfliteTensor, ...]
    operators: tuple[OperatorRecord, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ModelFile(SchemaSubgraph):
    """The main subgraph of a file, those that run once before it, and those that control flow runs."""

    once: tuple[SchemaSubgraph, ...] = ()
    branches: Mapping[int, SchemaSubgraph] = field(default_factory=dict)  # run by IF and WHILE, by subgraph number


@contextmanager
def guarded(place: str) -> Iterator[None]:
    """Convert exceptions that a damaged file causes into a ModelError that names the place."""
    try:
        yield
    except MlfcError as error:
        if error.place is None:
            error.place = place
        raise
    except UndecidedError as error:
        raise UnsupportedError(
            str(error), place=place, next_step="Specify bounds that decide it: --shape NAME=n:4..64,..."
        ) from None
    except _LIES as error:
        what = f"damaged: {error or type(error).__name__}"
        if isinstance(error, struct.error):  # reading beyond the end of a flatbuffer
            what = "truncated: its tables refer to bytes beyond its end"
        raise ModelError(
            f"the file is {what}",
            place=place,
            next_step="Export or download the model again",
        ) from None


def read_model(data: bytes, signature: str | None = None) -> ModelFile:
    """Read the contents of a .tflite file: the subgraph of a signature, or the first.

    Raises ModelError if it is not a TFLite model or is damaged, with the part as its place; UnsupportedError if it has
    subgraphs that neither initialize variables nor are called by control flow; OptionError for an unknown signature.
    """
    if len(data) < 8 or data[4:8] != IDENTIFIER:
        found = data[4:8].decode("ascii", "replace") if len(data) >= 8 else f"{len(data)} bytes in total"
        raise ModelError(
            f"expected a TFLite model (identifier TFL3 at byte 4), got {found!r}", next_step="Use a .tflite file"
        )
    with guarded("header"):
        model = tflite.Model.GetRootAsModel(data, 0)
        count = _count("subgraphs", model.SubgraphsLength(), data)
        if count == 0:
            raise ModelError("the model has no subgraph")
        code_count = _count("operator codes", model.OperatorCodesLength(), data)
        codes = [_code(model.OperatorCodes(i)) for i in range(code_count)]
        signatures = _signatures(model, count, data)
    if signature is not None and signature not in signatures:
        raise OptionError(unknown("signature", signature, signatures), place="signature")
    number = 0 if signature is None else signatures[signature]
    main = _subgraph(model, number, codes, data)
    if not main.outputs or -1 in (*main.inputs, *main.outputs) or len(set(main.inputs)) != len(main.inputs):
        raise ModelError(
            "the model must have outputs, and inputs that are distinct tensors", place="inputs and outputs of the model"
        )
    called = _called_once(main, number, count)
    branches = _branches(model, main, number, codes, data)
    # the operator that calls the others is refused with its own place
    is_whole = signature is not None or any(record.code in CONTROL_FLOW for record in main.operators)
    if count > 1 + len({*called, *branches}) and not is_whole:
        if signatures:
            cause = f"the model has {len(signatures)} signatures: {', '.join(map(repr, signatures))}"
            remedy = Remedy("--signature", next(iter(signatures)), is_example=True)
            raise InputError(cause, next_step=f"Choose one: {remedy}", remedies=[remedy])
        raise UnsupportedError(
            f"the model has {count} subgraphs", next_step="Export one of its signatures, without control flow"
        )
    once = tuple(_subgraph(model, number, codes, data) for number in called)
    return ModelFile(main.tensors, main.operators, main.inputs, main.outputs, once, branches)


def _subgraph(model: Any, number: int, codes: list[str], data: bytes) -> SchemaSubgraph:
    with guarded("header" if number == 0 else f"subgraph {number}"):
        graph = model.Subgraphs(number)
        tensor_count = _count("tensors", graph.TensorsLength(), data)
        operator_count = _count("operators", graph.OperatorsLength(), data)
    tensors = tuple(_tensor(model, graph, index, data) for index in range(tensor_count))
    operators = tuple(_operator(graph, index, codes, tensor_count, data) for index in range(operator_count))
    with guarded("inputs and outputs of the model"):
        inputs, outputs = (_indices(graph, kind, tensor_count, data, "the model") for kind in ("Inputs", "Outputs"))
    return SchemaSubgraph(tensors, operators, inputs, outputs)


_BRANCHES = {
    "IF": ("IfOptions", "ThenSubgraphIndex", "ElseSubgraphIndex"),
    "WHILE": ("WhileOptions", "CondSubgraphIndex", "BodySubgraphIndex"),
}


def _branches(model: Any, main: SchemaSubgraph, own: int, codes: list[str], data: bytes) -> dict[int, SchemaSubgraph]:
    """Return the subgraphs that control flow operators run, directly or indirectly."""
    found: dict[int, SchemaSubgraph] = {}
    waiting = [main]
    while waiting:
        for record in waiting.pop().operators:
            kind, *names = _BRANCHES.get(record.code, ("",))
            with guarded(f"operator {record.index} ({record.code})"):
                options = record.options(kind) if names else None
                for number in () if options is None else (getattr(options, name)() for name in names):
                    _check_called(number, own, model.SubgraphsLength())
                    if number not in found:
                        found[number] = _subgraph(model, number, codes, data)
                        waiting.append(found[number])
    return found


def _called_once(main: SchemaSubgraph, own: int, count: int) -> list[int]:
    """Return the subgraphs that run once before the first inference."""
    found: dict[int, None] = {}
    for record in main.operators:
        if record.code == "CALL_ONCE":
            with guarded(f"operator {record.index}"):
                options = record.options("CallOnceOptions")
                number = own if options is None else options.InitSubgraphIndex()
                _check_called(number, own, count)
                found[number] = None
    return list(found)


def _check_called(number: int, own: int, count: int) -> None:
    if number == own or not 0 <= number < count:
        raise ModelError(f"it runs subgraph {number}, which is the main subgraph or out of range for {count} subgraphs")


def _signatures(model: Any, count: int, data: bytes) -> dict[str, int]:
    """Return the subgraph number of each signature."""
    found = {}
    for index in range(_count("signatures", model.SignatureDefsLength(), data)):
        entry = model.SignatureDefs(index)
        if entry.SubgraphIndex() >= count:
            raise ModelError(f"expected a subgraph below {count} for a signature, got {entry.SubgraphIndex()}")
        found[(entry.SignatureKey() or b"").decode("utf-8", "replace")] = int(entry.SubgraphIndex())
    return found


def _count(what: str, count: int, data: bytes) -> int:
    """Return `count`, checked against the file size: each reference has four bytes."""
    if not 0 <= count * 4 <= len(data):
        raise ModelError(f"the file declares {count} {what}, but it has only {len(data)} bytes")
    return count


def _code(entry: Any) -> str:
    # old files have the number in a byte, newer ones in an additional int32
    number = max(entry.BuiltinCode(), entry.DeprecatedBuiltinCode())
    if number == tflite.BuiltinOperator.CUSTOM:
        custom: bytes | None = entry.CustomCode()
        return f"CUSTOM {custom.decode('utf-8', 'replace')[:80]}" if custom else "CUSTOM"
    return str(_CODE_NAMES.get(number, f"operator number {number}"))


def _indices(record: Any, kind: str, limit: int, data: bytes, of: str = "an operator") -> tuple[int, ...]:
    """Return the tensor indices of an operator or subgraph; flatbuffers returns 0 for a missing vector."""
    count = _count(f"{kind.lower()} of {of}", getattr(record, f"{kind}Length")(), data)
    array = getattr(record, f"{kind}AsNumpy")()
    if count == 0 or not isinstance(array, np.ndarray):
        return ()
    indices = tuple(int(index) for index in array)
    bad = [index for index in indices if not -1 <= index < limit]
    if bad:
        raise ModelError(f"unknown tensor {bad[0]}; the file has {limit}")
    return indices


def _operator(graph: Any, index: int, codes: list[str], tensor_count: int, data: bytes) -> OperatorRecord:
    with guarded(f"operator {index}"):
        record = graph.Operators(index)
        number = record.OpcodeIndex()
        if not 0 <= number < len(codes):
            raise ModelError(f"unknown operator code {number}; the file has {len(codes)}")
        inputs, outputs, between = (
            _indices(record, kind, tensor_count, data) for kind in ("Inputs", "Outputs", "Intermediates")
        )
        if -1 in (*outputs, *between):
            raise ModelError("an output is missing" if -1 in outputs else "an intermediate tensor is missing")
        length = record.CustomOptionsLength()
        _count("options", length // 4, data)
        custom = bytes(record.CustomOptionsAsNumpy()) if length else b""
        return OperatorRecord(index, codes[number], inputs, outputs, record.BuiltinOptions(), between, custom)


def _tensor(model: Any, graph: Any, index: int, data: bytes) -> TfliteTensor:
    with guarded(f"tensor {index}"):
        record = graph.Tensors(index)
        raw = record.Name()
        name = (raw or b"").decode("utf-8", "replace") or f"tensor_{index}"
    with guarded(f"tensor {index} ('{name[:80]}')"):
        _count("dimensions", record.ShapeLength(), data)
        shape = tuple(int(extent) for extent in record.ShapeAsNumpy()) if record.ShapeLength() else ()
        signature = record.ShapeSignatureAsNumpy() if record.ShapeSignatureLength() else ()
        dtype = _DTYPES.get(record.Type(), "")
        if len(shape) > _MAX_RANK:
            raise UnsupportedError(f"the tensor has {len(shape)} dimensions; at most {_MAX_RANK} are supported")
        if any(extent < 0 for extent in shape):
            raise ModelError(f"the shape {shape} has a negative extent")
        if prod(shape) * (dtypes.nbytes(dtype) if dtype else 1) > _MAX_BYTES:
            raise ModelError(f"the shape {shape} exceeds the address space")
        return TfliteTensor(
            index, name, shape, frozenset(axis for axis, extent in enumerate(signature) if extent < 0), dtype,
            _TYPE_NAMES.get(record.Type(), f"type number {record.Type()}"),
            _value(model, record, shape, dtype, data), _quantization(record.Quantization(), shape, data),
            bool(record.IsVariable()),
        )  # fmt: skip


def _value(model: Any, record: Any, shape: tuple[int, ...], dtype: str, data: bytes) -> npt.NDArray[Any] | None:
    number = record.Buffer()
    if number == 0:  # buffer 0 is empty by convention, for all tensors without a value
        return None
    if number >= _count("buffers", model.BuffersLength(), data):
        raise ModelError(f"unknown buffer {number}; the file has {model.BuffersLength()}")
    buffer = model.Buffers(number)
    contents = _contents(buffer, data)
    if contents is None or not dtype:
        return None
    if prod(shape) == 0:
        return np.zeros(shape, dtypes.to_numpy(dtype))
    if record.Sparsity() is not None:
        return _dense_value(record.Sparsity(), contents, shape, dtype)
    expected = -(-prod(shape) * dtypes.bits(dtype) // 8)  # sub-byte elements are packed
    if len(contents) != expected:
        raise ModelError(f"a {dtype} tensor of shape {shape} has {expected} bytes, its buffer {len(contents)}")
    if dtypes.is_narrow(dtype):
        return dtypes.unpacked(np.frombuffer(contents, np.uint8), shape, dtype)
    value = np.frombuffer(contents, dtypes.to_numpy(dtype).newbyteorder("<")).reshape(shape)
    # a damaged file may contain bytes other than 0 and 1, which are invalid bools in C
    return value.view(np.uint8) != 0 if dtype == "bool" else value.astype(dtypes.to_numpy(dtype), copy=False)


def _contents(buffer: Any, data: bytes) -> bytes | None:
    """Return the bytes of a buffer, which are in its table or (in large files) after the flatbuffer."""
    offset, size = buffer.Offset(), buffer.Size()
    if offset > 1:
        if offset + size > len(data):
            raise ModelError(f"a buffer reaches from byte {offset} to {offset + size} of {len(data)}")
        return data[offset : offset + size]
    if buffer.DataLength() == 0:
        return None
    if buffer.DataLength() > len(data):
        raise ModelError(f"a buffer declares {buffer.DataLength()} bytes, but the file has {len(data)}")
    return bytes(buffer.DataAsNumpy())


def _quantization(record: Any, shape: tuple[int, ...], data: bytes) -> TensorQuantization | None:
    if record is None or record.ScaleLength() == 0:
        return None
    count = _count("scales", record.ScaleLength(), data)
    scales = np.array(record.ScaleAsNumpy(), np.float32)
    _count("zero points", record.ZeroPointLength(), data)
    zeros = np.array(record.ZeroPointAsNumpy(), np.int64) if record.ZeroPointLength() else np.zeros(count, np.int64)
    axis = record.QuantizedDimension()
    if len(zeros) == 1 and count > 1:
        zeros = np.repeat(zeros, count)
    if len(zeros) != count:
        raise ModelError(f"there are {count} scales but {len(zeros)} zero points")
    if not np.all(np.isfinite(scales)) or np.any(scales <= 0):
        raise ModelError("a quantization scale is not a positive number")
    if np.any(zeros < -(1 << 15)) or np.any(zeros >= 1 << 16):
        raise ModelError("a zero point is outside every integer type")
    if count > 1 and not (0 <= axis < len(shape) and shape[axis] == count):
        raise ModelError(f"there are {count} scales for dimension {axis} of shape {shape}")
    return TensorQuantization(scales, zeros, axis)


def _dense_value(record: Any, contents: bytes, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Return the dense value of a tensor whose buffer has only the elements selected by SparsityParameters.

    A sparse tensor is a tree: its levels are the dimensions in some order, then the dimensions of blocks, if any. A
    dense level has all indices below each node, a compressed one lists the existing ones. The leaves are the values, in
    order (TFLite's schema). Raises ModelError if the parameters contradict the shape, each other or the buffer;
    LimitError if the tensor is out of proportion to the file size.
    """
    if dtype == "bool":
        raise UnsupportedError("a sparse tensor of bool is not supported", next_step="Export dense weights")
    item = np.dtype(dtypes.to_numpy(dtype)).newbyteorder("<")
    cost.spend("constants", prod(shape) * item.itemsize)
    cost.require("constants", prod(shape) * _POSITION_BYTES)
    places = np.zeros(1, np.int64)
    for level, (extent, stride) in enumerate(_levels(record, shape)):
        places = _children(record.DimMetadata(level), places, extent, stride)
    if len(contents) != len(places) * item.itemsize:
        raise ModelError(
            f"{len(places)} elements of {dtype} have {len(places) * item.itemsize} bytes, the buffer {len(contents)}"
        )
    value = np.zeros(prod(shape), dtypes.to_numpy(dtype))
    value[places] = np.frombuffer(contents, item)
    return value.reshape(shape)


def _levels(record: Any, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the number of indices and the element stride of each level."""
    rank, count = len(shape), record.DimMetadataLength()
    order = _short_vector(record.TraversalOrderAsNumpy(), record.TraversalOrderLength())
    blocked = _short_vector(record.BlockMapAsNumpy(), record.BlockMapLength())
    if count > 2 * rank or sorted(order) != list(range(count)) or count != rank + len(blocked):
        raise ModelError(f"a sparse tensor of shape {shape} has the levels {order} with blocks of {blocked}")
    if len(set(blocked)) != len(blocked) or not all(0 <= axis < rank for axis in blocked):
        raise ModelError(f"a sparse tensor of {rank} dimensions has blocks of {blocked}")
    blocks = [1] * rank
    for level, dimension in enumerate(order):
        if dimension >= rank:
            axis, size = blocked[dimension - rank], record.DimMetadata(level).DenseSize()
            if size < 1 or shape[axis] % size:
                raise ModelError(f"axis {axis} of {shape} is not made up of blocks of {size}")
            blocks[axis] = size
    strides = [prod(shape[axis + 1 :]) for axis in range(rank)]
    return [
        (shape[dimension] // blocks[dimension], strides[dimension] * blocks[dimension])
        if dimension < rank
        else (blocks[blocked[dimension - rank]], strides[blocked[dimension - rank]])
        for dimension in order
    ]


def _children(metadata: Any, places: npt.NDArray[Any], extent: int, stride: int) -> npt.NDArray[Any]:
    """Return the start offsets of the children of the nodes at `places`, in order."""
    if metadata.Format() == _DENSE:
        if metadata.DenseSize() != extent:
            raise ModelError(f"a dense level of {extent} has the size {metadata.DenseSize()}")
        return (places[:, None] + np.arange(extent) * stride).ravel()
    if metadata.Format() != _COMPRESSED:
        raise UnsupportedError(f"sparse format {metadata.Format()} is not supported", next_step="Export dense weights")
    ends = _vector(metadata.ArraySegmentsType(), metadata.ArraySegments())
    indices = _vector(metadata.ArrayIndicesType(), metadata.ArrayIndices())
    counts = np.diff(ends)
    if len(counts) != len(places) or ends[0] != 0 or ends[-1] != len(indices) or np.any(counts < 0):
        raise ModelError(f"{len(indices)} indices are not divided among {len(places)} nodes")
    if len(indices) and not 0 <= indices.min() <= indices.max() < extent:
        raise ModelError(f"an index is outside a level of {extent}")
    nodes = np.repeat(np.arange(len(places)), counts)
    if np.any((np.diff(indices) <= 0) & (np.diff(nodes) == 0)):
        raise ModelError("the indices of a node are not in ascending order")
    found: npt.NDArray[Any] = np.repeat(places, counts) + indices * stride
    return found


def _vector(kind: int, table: Any) -> npt.NDArray[Any]:
    if kind not in _VECTORS or table is None:
        raise ModelError("a compressed level has no indices")
    vector = _VECTORS[kind]()
    vector.Init(table.Bytes, table.Pos)
    if vector.ValuesLength() > len(table.Bytes):
        raise ModelError(f"a vector declares {vector.ValuesLength()} values, but the file has {len(table.Bytes)} bytes")
    if not vector.ValuesLength():
        return np.zeros(0, np.int64)
    values: npt.NDArray[Any] = np.asarray(vector.ValuesAsNumpy(), np.int64)
    return values


def _short_vector(array: Any, count: int) -> list[int]:
    """Return a short vector's values; flatbuffers returns 0 for a missing one."""
    if not 0 <= count <= 2 * _MAX_RANK:
        raise ModelError(f"a sparse tensor has {count} levels")
    return [int(value) for value in array] if count else []
