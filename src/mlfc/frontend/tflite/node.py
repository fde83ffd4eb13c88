"""A TFLite operator as converters see it: its tensors, its inputs as expressions, and methods to refuse it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from flatbuffers import flexbuffers
from tflite import TensorType

from mlfc.errors import ModelError, Remedy, UnsupportedError
from mlfc.frontend import symbolic
from mlfc.frontend.common import folded
from mlfc.frontend.dynamic import Dynamic
from mlfc.frontend.tflite.schema import OperatorRecord, TfliteTensor
from mlfc.frontend.tflite.variables import Variables
from mlfc.registry import Registry
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, Span, Var, const
from mlfc.support import cost
from mlfc.support.dims import Dim

Converter: TypeAlias = "Callable[[Node], Expr | list[Expr]]"
CONVERTERS: Registry[Converter] = Registry("TFLite operator", "mlfc.frontend.tflite")
CODES = ("int8", "uint8", "int16")
"""Dtypes of quantized tensors."""
SCALED: dict[str, tuple[str, ...]] = {}
"""Dtypes of inputs and outputs that require a scale, by operator."""
_LONGEST_LABEL = 200
_MOST_OPTIONS = 64  # of a custom operator
_INDEX_TYPES = {TensorType.INT32: "int32", TensorType.INT64: "int64"}

Inline: TypeAlias = "Callable[[Node, int, str, Sequence[Expr]], list[Expr]]"
"""Convert a subgraph, given its number, its role for the node, and expressions for its inputs."""


def converts(*codes: str, scaled: tuple[str, ...] = ()) -> Callable[[Converter], Converter]:
    """Return a decorator that registers a converter for operators of TFLite's BuiltinOperator.

    `scaled` are dtypes of inputs and outputs that the reference kernel multiplies by their scales (0 if they have
    none).
    """

    def register(converter: Converter) -> Converter:
        for code in codes:
            CONVERTERS.add(code, converter)
            SCALED[code] = scaled
        return converter

    return register


@dataclass(frozen=True, eq=False)
class Batched:
    """Data that an operator splits into batches: block sizes, padding widths, and the code of zero."""

    source: Expr
    blocks: Sequence[int]
    widths: Sequence[tuple[int, int]]
    zero: int  # the padding value


@dataclass(frozen=True, eq=False)
class Node:
    """One operator of the file during its conversion."""

    record: OperatorRecord
    tensors: tuple[TfliteTensor, ...]  # all tensors of the file
    exprs: Mapping[int, Expr]  # known expressions by tensor index
    numerics: str  # ``litert`` or ``tflm``, whose rounding fully connected layers follow
    variables: Variables  # of the model; operators may add their own
    scope: str  # label prefix for operators of a subgraph; empty for the main one
    inline: Inline
    batched: dict[int, Batched]  # by tensor index of the batches
    dynamic: Dynamic | None  # None unless branches and loops are left to run time
    assigned: dict[int, Expr] = field(default_factory=dict)  # new values of variable tensors, by tensor index

    @property
    def label(self) -> str:
        """Readable unique name: the first output's name, the operator, its index in the file."""
        name = self.tensors[self.record.outputs[0]].name if self.record.outputs else ""
        short = name if len(name) <= _LONGEST_LABEL else name[:_LONGEST_LABEL] + "..."
        return f"{self.scope}{short} ({self.record.code} #{self.record.index})".strip()

    @property
    def span(self) -> Span:
        """Span of the expressions that this operator creates."""
        return Span((self.label,))

    def has(self, position: int) -> bool:
        """Return whether an optional input is present."""
        return position < len(self.record.inputs) and self.record.inputs[position] >= 0

    def input(self, position: int) -> TfliteTensor:
        """Return the tensor of an input."""
        if not self.has(position):
            raise ModelError(f"input {position} is missing")
        return self.tensors[self.record.inputs[position]]

    def output(self, position: int = 0) -> TfliteTensor:
        """Return the tensor of an output."""
        if position >= len(self.record.outputs):
            raise ModelError(f"output {position} is missing")
        return self.tensors[self.record.outputs[position]]

    def expr(self, position: int) -> Expr:
        """Return the expression of an input; its type has the actual shape, which user shapes may determine."""
        return self.exprs[self.input(position).index]

    def assign(self, position: int, value: Expr) -> None:
        """Assign a new value to a variable input, for later operators and for the next run."""
        self.assigned[self.input(position).index] = value

    def operands(self) -> list[Expr]:
        """Return the expressions of all inputs."""
        return [self.expr(position) for position in range(len(self.record.inputs))]

    def shape(self, position: int) -> tuple[Any, ...]:
        """Return the actual shape of an input: integers, and a `Dim` for each dynamic dimension."""
        return ir.tensor_type(self.expr(position)).shape

    def value(self, position: int) -> npt.NDArray[Any]:
        """Return the value of an input that must be a constant."""
        expr = self.expr(position)
        if not isinstance(expr, Constant):
            # a variable without a tensor name stands in for the result of a refused operator
            name = expr.name if isinstance(expr, Var) and expr.span.tensor is not None else None
            remedies = [] if name is None else [Remedy("--value", f"{name}=...")]
            raise UnsupportedError(
                f"input {position} ('{self.input(position).name}') is computed at run time",
                next_step=f"Specify its value at compile time: {remedies[0]}" if remedies else "It must be a constant",
                remedies=remedies,
            )
        return expr.data

    def integer(self, position: int) -> int:
        """Return an input that must be a single constant integer."""
        value: int = _only(self.integers(position), position)
        return value

    def extent(self, position: int) -> Any:
        """Return an input that must be a single integer; a `Dim` is a symbolic dimension size."""
        return _only(self.extents(position), position)

    def extents(self, position: int) -> list[Any]:
        """Return an input of integers as a flat list; a `Dim` is a symbolic dimension size."""
        found = symbolic.known(self.expr(position))
        if found is None or ir.tensor_type(self.expr(position)).dtype == "bool":
            return self.integers(position)
        return list(found.reshape(-1).tolist())

    def integers(self, position: int) -> list[int]:
        """Return a constant input of integers as a flat list."""
        value = self.value(position)
        if value.dtype.kind not in "iu":
            raise ModelError(f"expected integers as input {position}, got {value.dtype}")
        return [int(item) for item in np.ravel(value)]

    def options(self, kind: str) -> Any:
        """Return the options table of class `kind`; raise ModelError if the operator has none."""
        options = self.record.options(kind)
        if options is None:
            raise ModelError("the operator has no options")
        return options

    def check_type(self, kind: str, of: Callable[[Any], int]) -> None:
        """Raise ModelError if the type in the options of class `kind`, int32 or int64, differs from the output's."""
        options = self.record.options(kind)
        if options is not None and _INDEX_TYPES.get(of(options)) != self.output().dtype:
            raise ModelError(f"its options have another type than its output '{self.output().name}'")

    def call(self, name: str, *args: Expr, **attrs: Any) -> Expr:
        """Apply a Relay operator; evaluate it if it computes a shape from known or symbolic values."""
        result, output = ir.call(name, args, attrs, span=self.span), self.output()
        found = symbolic.folded(result, {})
        # weights, and expressions of weights, are left for a later folding pass
        counts = output.dtype in ("int32", "int64", "bool") and output.quantization is None
        inputs = (self.expr(place) for place in range(len(self.record.inputs)) if self.has(place))
        is_known = counts and all(isinstance(item, Constant) or symbolic.known(item) is not None for item in inputs)
        return folded(result) if found is result and is_known else found

    def cut(self, data: Expr, begin: int, end: Any, axis: int = 0) -> Expr:
        """Return the slice of a tensor from `begin` to `end` along an axis."""
        return self.call("strided_slice", data, begin=(begin,), end=(end,), strides=(1,), axes=(axis,))

    def joined(self, parts: Iterable[Expr], axis: int) -> Expr:
        """Return tensors concatenated along an axis."""
        return self.call("concatenate", ir.Tuple(tuple(parts)), axis=axis)

    def sizes(self, values: Sequence[Any]) -> Expr:
        """Return dimension sizes as the output; a constant if all are integers."""
        dtype = self.output().dtype or "int32"
        return symbolic.as_tensor(symbolic.objects(values, (len(values),)), dtype, self.span, self.output().name)

    def number(self, value: Any, dtype: str = "int32") -> Expr:
        """Return a dimension size as a scalar: a constant unless it is a `Dim`."""
        return symbolic.as_tensor(symbolic.objects([value], ()), dtype, self.span)

    def counted(self, count: Any, dtype: str = "int32") -> Expr:
        """Return 0, 1, ...: a constant unless `count` is a `Dim`.

        Raise LimitError for a number out of proportion to the size of the file.
        """
        if isinstance(count, Dim):
            ends = const(0, dtype), self.number(count, dtype), const(1, dtype)
            return self.call("arange", *ends, start=0, stop=count, step=1, dtype=dtype)
        cost.require("constants", count * 8, self.label)
        return const(np.arange(count), dtype)

    def refuse(self, cause: str, next_step: str | None = None) -> NoReturn:
        """Raise UnsupportedError."""
        raise UnsupportedError(cause, next_step=next_step)

    def scale(self, tensor: TfliteTensor) -> np.float32:
        """Return the scale of a tensor quantized per tensor."""
        return np.float32(_single(tensor)[0])

    def zero_point(self, tensor: TfliteTensor) -> int:
        """Return the zero point of a tensor quantized per tensor."""
        return int(_single(tensor)[1])

    def quantization(self, tensor: TfliteTensor) -> tuple[Constant, Constant]:
        """Return scale and zero point of a tensor as constants; refuse the operator unless it has one of each."""
        scale, zero_point = _single(tensor)
        return const(scale, "float32"), const(zero_point, "int32")

    def quantizations(self, *tensors: TfliteTensor) -> list[Constant]:
        """Return the scales and zero points of tensors in a flat list."""
        return [item for tensor in tensors for item in self.quantization(tensor)]

    def refuse_new_scale(self) -> None:
        """Raise UnsupportedError unless the first input and the output have the same scale and zero point."""
        if not same_quantization(self.input(0), self.output()):
            self.refuse(f"{self.record.code} between different scales is not supported", "Keep one scale across it")

    @property
    def quantized(self) -> bool:
        """Return whether the first output is quantized."""
        return is_quantized(self.output())


def _only(values: Sequence[Any], position: int) -> Any:
    if len(values) != 1:
        raise ModelError(f"expected one integer as input {position}, got {len(values)}")
    return values[0]


def is_quantized(tensor: TfliteTensor) -> bool:
    """Return whether a tensor is quantized."""
    return tensor.quantization is not None and tensor.dtype in CODES


def same_quantization(a: TfliteTensor, b: TfliteTensor) -> bool:
    """Return whether two tensors have the same single scale and zero point, or neither has any."""
    if a.quantization is None or b.quantization is None:
        return a.quantization is b.quantization
    return bool(_single(a) == _single(b))


def _single(tensor: TfliteTensor) -> tuple[np.float32, int]:
    quantization = tensor.quantization
    if quantization is None:
        raise ModelError(f"tensor '{tensor.name}' has no scale and zero point")
    if len(quantization.scales) != 1:
        raise UnsupportedError(f"tensor '{tensor.name}' has a scale per channel, which is only supported for weights")
    return quantization.scales[0], int(quantization.zero_points[0])


def shape_of(expr: Expr) -> tuple[int, ...]:
    """Return the shape of a tensor."""
    return ir.tensor_type(expr).shape


# Options of custom operators, a map of FlexBuffers


def _found(node: Node, name: str) -> Any:
    """Return an option as a FlexBuffers value, None if it is missing."""
    options = flexbuffers.GetRoot(node.record.custom) if node.record.custom else None
    if options is None or not options.IsMap or len(options.AsMap) > _MOST_OPTIONS:
        raise ModelError(f"expected a map of options, with '{name}' among them")
    entries = zip(options.AsMap.Keys, options.AsMap.Values, strict=True)
    return next((value for key, value in entries if key.AsKey == name), None)


def option(
    node: Node, name: str, low: int | None = None, high: int = (1 << 31) - 1, *, default: int | None = None
) -> int:
    """Return an option of a custom operator that is a bool, or an integer in [low, high]."""
    found = _found(node, name)
    if found is None and default is None:
        raise ModelError(f"its option '{name}' is missing")
    if found is not None and not found.IsInt and not found.IsBool:
        raise ModelError(f"expected a number as its option '{name}'")
    value = int(default or 0) if found is None else int(found.AsInt if found.IsInt else found.AsBool)
    if low is not None and not low <= value <= high:
        raise ModelError(f"expected its option '{name}' between {low} and {high}, got {value}")
    return value


def real(node: Node, name: str) -> float:
    """Return an option of a custom operator that is a finite number."""
    value = _found(node, name)
    if value is None or not (value.IsFloat or value.IsInt):
        raise ModelError(f"expected a number as its option '{name}'")
    number = float(value.AsFloat) if value.IsFloat else float(value.AsInt)
    if not math.isfinite(number):
        raise ModelError(f"its option '{name}' is {number}")
    return number
