"""An ONNX node as importers see it, with methods to build Relay expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx

from mlfc.errors import InternalError, ModelError, TypeCheckError, UnsupportedError
from mlfc.frontend.common import folded
from mlfc.frontend.dynamic import Dynamic
from mlfc.frontend.symbolic import as_tensor
from mlfc.ops.rules import UnequalDimsError, same_shape
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, Quantization, Span, TensorType, Tuple
from mlfc.support import cost, dtypes
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, UndecidedError, bounds, is_static, substituted

TENSOR_LIMIT = 1 << 34
_NUMBERS = (int, float, Dim)
_LARGEST_LIST = 64  # maximum number of dimension sizes that are runtime values


class UnknownValueError(UnsupportedError):
    """Error of an importer that requires the value of the node's input `index`, which is only known at run time.

    `likely` are the types that the outputs have with the values that the error suggests.
    """

    def __init__(self, cause: str, *, index: int, likely: Sequence[ir.Type] = (), **told: Any) -> None:
        super().__init__(cause, **told)
        self.index = index
        self.likely = tuple(likely)


@dataclass(eq=False)
class Node:
    """One node of an ONNX graph with its inputs as Relay expressions."""

    name: str  # the node's name, or ``Operator #index`` if it has none
    operator: str  # qualified by its domain if that is not ONNX's own
    opset: int  # version of the operator's domain
    inputs: list[Expr | None]  # None for an omitted optional input
    outputs: list[str]  # names of the output tensors; empty if unused
    attributes: dict[str, Any]  # decoded: int, float, bytes, tuples of these, ndarray, GraphProto
    folds: bool  # whether `call` evaluates operators on known arguments
    noted: dict[Expr, Quantization] = field(repr=False)  # quantization of the model's integer tensors
    # declared static shapes of the outputs; None for outputs without one
    declared: Sequence[tuple[int, ...] | None] = ()
    # imports a graph attribute of the node in the node's scope, and returns its results
    import_graph: Callable[[onnx.GraphProto, Sequence[Expr]], list[Expr]] | None = field(default=None, repr=False)
    # returns the run counter of the model, and a number that is unique to this random node
    draw_key: Callable[[], tuple[Expr, int]] | None = field(default=None, repr=False)
    # definitions of symbols; None if all shapes must be static
    dynamic: Dynamic | None = field(default=None, repr=False)
    read_attributes: set[str] = field(default_factory=set)
    checks: list[Expr] = field(default_factory=list, repr=False)  # runtime checks of models with static shapes

    @property
    def declared_shape(self) -> tuple[int, ...] | None:
        """The declared shape of the first output that has a static one."""
        return next((shape for shape in self.declared if shape is not None), None)

    def declared_along(self, axes: Sequence[int]) -> list[int] | None:
        """Return the declared sizes of the axes of input 0 that the node changes; None if other axes differ."""
        old, declared = self.shape(0), self.declared_shape
        if declared is None or len(declared) != len(old):
            return None
        if any(declared[axis] != size for axis, size in enumerate(old) if axis not in axes):
            return None
        return [declared[axis] for axis in axes]

    # Inputs

    def has(self, index: int) -> bool:
        """Return whether input `index` is given."""
        return self.optional(index) is not None

    def wants(self, index: int) -> bool:
        """Return whether output `index` is used."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def input(self, index: int) -> Expr:
        """Return input `index`; raise ModelError if it is omitted."""
        found = self.optional(index)
        if found is None:
            raise ModelError(f"{self.operator} requires input {index}, which is missing", place=self.name)
        return found

    def optional(self, index: int) -> Expr | None:
        """Return input `index`, None if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def all_inputs(self) -> list[Expr]:
        """Return the inputs of a variadic operator; raise ModelError if there are none or one is omitted."""
        if not self.inputs:
            raise ModelError(f"{self.operator} has no inputs", place=self.name)
        return [self.input(index) for index in range(len(self.inputs))]

    def shape(self, index: int) -> tuple[Any, ...]:
        """Return the shape of input `index`."""
        return ir.tensor_type(self.input(index)).shape

    def rank(self, index: int) -> int:
        """Return the number of dimensions of input `index`."""
        return len(self.shape(index))

    def dtype(self, index: int) -> str:
        """Return the dtype of input `index`."""
        return ir.tensor_type(self.input(index)).dtype

    def known(self, index: int) -> npt.NDArray[Any] | None:
        """Return the value of input `index`, None if it is omitted or only known at run time."""
        found = self.optional(index)
        return None if found is None else _value(found)

    def value(self, index: int, what: str) -> npt.NDArray[Any]:
        """Return input `index`, which must be known at compile time; `what` is its name in ONNX's documentation."""
        known = _value(self.input(index))
        if known is None:
            raise self.unknown(index, what)
        return known

    def known_integers(self, index: int, what: str) -> tuple[Any, ...] | None:
        """Return the integers or dimension expressions in a scalar or list input; None if they are runtime values."""
        extents = None if self.dynamic is None else self.dynamic.known(self.input(index))
        if extents is not None and extents.ndim <= 1 and self.dtype(index) != "bool":
            return tuple(item if isinstance(item, Dim) else int(item) for item in extents.reshape(-1))
        array = _value(self.input(index))
        if array is not None and (array.dtype.kind not in "iu" or array.ndim > 1):
            raise ModelError(f"input '{what}' of {self.operator} must be a list of integers", place=self.name)
        return None if array is None else tuple(int(item) for item in array.reshape(-1))

    def int_values(self, index: int, what: str) -> tuple[Any, ...]:
        """Return the integers or dimension expressions in an input that must be known at compile time."""
        known = self.known_integers(index, what)
        if known is None:
            raise self.unknown(index, what)
        return known

    def sizes(
        self,
        index: int,
        what: str,
        declared: Sequence[int | None] | None = None,
        *,
        values: Expr | None = None,
        high: Sequence[Extent] = (),
    ) -> tuple[Any, ...]:
        """Return the dimension sizes in a scalar or list input, or in `values` computed from it.

        Known sizes are integers or dimension expressions. Runtime values must equal the sizes derived from a `declared`
        shape (None where any size is valid); otherwise they are new symbols, at most `high`. Raises UnknownValueError
        if shapes must be static, or the number of sizes is unknown.
        """
        known = self.known_integers(index, what) if values is None else None
        if known is not None:
            return known
        values = self.input(index) if values is None else values
        shape = shape_of(values)
        count = prod(shape)
        if declared is not None:
            if count != len(declared):
                self.wrong(f"expected {len(declared)} numbers in input {index} for the declared shape, got {count}")
            places = [place for place, size in enumerate(declared) if size is not None]
            asked = self.cast(self.reshape(values, (len(declared),)), "int64")
            if len(places) < len(declared):
                asked = self.call("take", asked, self.constant(places, "int64"), axis=0)
            if places:
                wanted = self.constant([declared[place] for place in places], "int64")
                self.require_declared(self.call("all", self.call("equal", asked, wanted), axis=(0,), keepdims=False))
            return tuple(1 if size is None else size for size in declared)
        is_list = len(shape) <= 1 and not isinstance(count, Dim) and count <= _LARGEST_LIST
        if self.dynamic is None or not is_list or not dtypes.is_integer(dtype_of(values)):
            raise self.unknown(index, what)
        flat = self.reshape(values, (count,))
        elements = (self.reshape(self.cut(flat, 0, at, at + 1), ()) for at in range(count))
        limits = high or [LARGEST] * count
        return tuple(self.runtime_size(item, 0, limit) for item, limit in zip(elements, limits, strict=True))

    def require_declared(self, flag: Expr) -> None:
        """Require at run time that a bool is true, which means that the value of an input yields the declared shape."""
        self.require(flag, f"whether '{self.name}' gives the shape that the model declares")

    def size(
        self, index: int, what: str, number: Expr, declared: int | None = None, low: int = 0, high: Extent = LARGEST
    ) -> Any:
        """Return a size that is computed from input `index`, as `sizes` does."""
        if declared is not None:
            self.require_declared(self.call("equal", number, declared))
            return declared
        if self.dynamic is None:
            raise self.unknown(index, what)
        return self.runtime_size(number, low, high)

    def unknown(self, index: int, what: str) -> UnknownValueError:
        """Return the error of a node that requires input `index` at compile time."""
        cause = f"{self.operator} with an input '{what}' that is not constant is not supported"
        return UnknownValueError(cause, index=index, place=self.name)

    def undecided(self, error: Exception) -> None:
        """Continue after a comparison that the bounds of dimension sizes do not decide; raise any other error.

        The import restarts if a lower bound of 1 in place of the default 0 decides the comparison.
        """
        cause = error if isinstance(error, UndecidedError) else error.__cause__
        if self.dynamic is None or not isinstance(cause, UndecidedError):
            raise error
        extent = cause.extent
        if extent is None:
            return

        def is_decided(values: Mapping[Symbol, Extent]) -> bool:
            low, high = bounds(substituted(extent, values))
            return low >= 0 or high < 0

        self.dynamic.exclude_empty([extent], is_decided)

    def extent(self, index: int, what: str, declared: int | None = None, high: Extent = LARGEST) -> Any:
        """Return the integer or dimension expression in an input of one element, or a size as `size` returns it."""
        given = self.input(index)
        known = None if self.dynamic is None else self.dynamic.known(given)
        known = _value(given) if known is None else known
        if known is not None:
            (found,) = known.reshape(-1)
            return found if isinstance(found, Dim) else int(found)
        number = given if dtypes.is_integer(dtype_of(given)) else self.cast(given, "int64")
        return self.size(index, what, self.reshape(number, ()), declared, 0, high)

    def runtime_size(self, number: Expr, low: int = 0, high: Extent = LARGEST) -> Any:
        """Return a one-element integer tensor that is computed at run time, within bounds, as a dimension size."""
        if self.dynamic is None:
            raise InternalError("a dynamic dimension in a model of static shapes")
        return self.dynamic.defined(number, self.name, low, bounds(high)[1])

    def require(self, flag: Expr, what: str) -> None:
        """Require a bool to be true at run time; `what` describes it. Raises ModelError if it is known to be false."""
        known = _value(flag)
        if known is not None:
            if not known.all():
                self.wrong(f"its inputs do not fit: {what}: no")
        elif self.dynamic is not None:
            self.dynamic.require(flag, True, what)
        else:
            self.checks.append(flag)

    # Attributes

    def attribute(self, name: str) -> Any:
        """Return the decoded attribute, None if the node does not have it."""
        self.read_attributes.add(name)
        return self.attributes.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer attribute."""
        return int(self._typed(name, default, lambda value: isinstance(value, int), "an integer"))

    def flag(self, name: str, default: int = 0) -> bool:
        """Return whether an integer attribute is 1; as in ONNX Runtime, all other numbers are false."""
        return self.integer(name, default) == 1

    def real(self, name: str, default: float | None = None) -> float:
        """Return a float attribute."""
        return float(self._typed(name, default, lambda value: isinstance(value, float), "a float"))

    def string(self, name: str, default: str | None = None) -> str:
        """Return a string attribute."""
        value = self._typed(name, default, lambda value: isinstance(value, (bytes, str)), "a string")
        return value if isinstance(value, str) else value.decode("utf-8", "replace")

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return an attribute that is a list of integers."""
        return tuple(self._typed(name, default, lambda value: _all(value, int), "a list of integers"))

    def reals(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return an attribute that is a list of floats."""
        return tuple(self._typed(name, default, lambda value: _all(value, float), "a list of floats"))

    def given(self, name: str) -> bool:
        """Return whether the node has the attribute."""
        return self.attribute(name) is not None

    def graph(self, name: str, arguments: Sequence[Expr]) -> list[Expr]:
        """Apply a graph attribute to arguments, and return its results."""
        found = self._typed(name, None, lambda value: isinstance(value, onnx.GraphProto), "a graph")
        if self.import_graph is None:
            self.unsupported(f"with the graph '{name}' is not supported")
        return self.import_graph(found, arguments)

    def draw(self) -> tuple[Expr, int]:
        """Return the run counter as an int64, and a number that identifies this node."""
        if self.draw_key is None:
            self.unsupported("of random numbers is not supported here")
        return self.draw_key()

    def _typed(self, name: str, default: Any, fits: Callable[[Any], bool], kind: str) -> Any:
        value = self.attribute(name)
        if value is None:
            if default is None:
                raise ModelError(f"{self.operator} requires the attribute '{name}'", place=self.name)
            return default
        # protobuf cannot distinguish an empty list of integers from an empty list of floats
        if value != () and not fits(value):
            raise ModelError(f"attribute '{name}' of {self.operator} must be {kind}", place=self.name)
        return value

    # Refusals

    def unsupported(self, cause: str, next_step: str | None = None) -> NoReturn:
        """Raise UnsupportedError for this node."""
        raise UnsupportedError(f"{self.operator} (opset {self.opset}) {cause}", place=self.name, next_step=next_step)

    def wrong(self, cause: str) -> NoReturn:
        """Raise ModelError for this node."""
        raise ModelError(f"{self.operator}: {cause}", place=self.name)

    def axis(self, axis: int, rank: int) -> int:
        """Return `axis` as a nonnegative number; raise ModelError if it is out of range for `rank`."""
        if not -rank <= axis < rank:
            self.wrong(f"axis {axis} is outside a tensor of {rank} dimensions")
        return axis % rank

    # Building

    @property
    def span(self) -> Span:
        """Span of the expressions that this node creates."""
        return Span((self.name,))

    def call(self, operator: str, /, *args: Expr | Extent | float, **attrs: Any) -> Expr:
        """Apply a Relay operator; evaluate it if the node folds and all arguments are known and small.

        Numbers and dimension expressions among the arguments get the dtype of the last tensor.
        """
        last = next((arg for arg in reversed(args) if not isinstance(arg, _NUMBERS)), None)
        given = [self.like(arg, last) if isinstance(arg, _NUMBERS) else arg for arg in args]  # type: ignore[arg-type]
        result = ir.call(operator, given, attrs, span=self.span)
        if isinstance(result.type, TensorType):
            if bounds(result.type.nbytes)[0] > TENSOR_LIMIT:
                self.unsupported(f"makes a tensor of shape {result.type.shape}, which is too large")
            if self.folds:
                return folded(result)
            if self.dynamic is not None:
                return self.dynamic.folded(result)
        return result

    def constant(self, value: Any, dtype: str) -> Constant:
        """Return a constant, or a tensor of dimension sizes if one of the values is only known at run time."""
        extents = np.asarray(value, object) if isinstance(value, (Dim, list, tuple, np.ndarray)) else None
        if extents is not None and any(isinstance(item, Dim) for item in extents.reshape(-1)):
            if dtypes.is_integer(dtype):
                return as_tensor(extents, dtype, self.span)  # type: ignore[return-value]  # see the docstring
            wide = as_tensor(extents, "int64", self.span)
            return ir.call("cast", [wide], dtype=dtype, span=self.span)  # type: ignore[return-value]
        return ir.const(np.asarray(value), dtype, span=self.span)

    def counted(self, count: Extent, dtype: str = "int64") -> Constant:
        """Return 0, 1, ... as a constant; raise LimitError for a count out of proportion to the size of the file.

        A dynamic count results in a tensor that is computed at run time.
        """
        if isinstance(count, Dim):
            zero, one = (self.constant(number, dtype) for number in (0, 1))
            end, steps = self.constant(count, dtype), {"start": 0, "stop": count, "step": 1, "dtype": dtype}
            return self.call("arange", zero, end, one, **steps)  # type: ignore[return-value]  # as `constant`
        cost.require("constants", count * 8, self.name)
        return self.constant(np.arange(count), dtype)

    def like(self, value: Any, expr: Expr) -> Constant:
        """Return a scalar of the dtype of `expr`, a constant unless `value` is dynamic."""
        return self.constant(value, ir.tensor_type(expr).dtype)

    def filled(self, shape: Sequence[Extent], value: float, dtype: str) -> Expr:
        """Return a tensor filled with one value."""
        if is_static(shape):
            return self.constant(np.full(tuple(shape), value), dtype)
        return self.call("full", self.constant(value, dtype), shape=tuple(shape), dtype=dtype)

    def has_shape(self, shape: Sequence[Extent], wanted: Sequence[Extent]) -> bool:
        """Return whether shapes are equal; raise UnequalDimsError if that depends on runtime values."""
        if tuple(shape) == tuple(wanted) or len(shape) != len(wanted) or is_static((*shape, *wanted)):
            return tuple(shape) == tuple(wanted)
        try:
            same_shape(self.operator, tuple(shape), tuple(wanted))
        except UnequalDimsError as error:
            error.place = self.name
            raise
        except TypeCheckError:
            return False
        return True

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """Return `expr` as `dtype`."""
        return expr if ir.tensor_type(expr).dtype == dtype else self.call("cast", expr, dtype=dtype)

    def reshape(self, expr: Expr, shape: Sequence[Extent]) -> Expr:
        """Return `expr` reshaped; all sizes must be given."""
        wanted = tuple(extent if isinstance(extent, Dim) else int(extent) for extent in shape)
        if ir.tensor_type(expr).shape == wanted:
            return expr
        return self.call("reshape", expr, newshape=wanted, allowzero=any(bounds(extent)[0] <= 0 for extent in wanted))

    def transpose(self, expr: Expr, axes: Sequence[int]) -> Expr:
        """Return `expr` with its axes in another order."""
        if tuple(axes) == tuple(range(len(axes))):
            return expr
        return self.call("transpose", expr, axes=tuple(axes))

    def broadcast(self, expr: Expr, shape: Sequence[Extent]) -> Expr:
        """Return `expr` broadcast to `shape`."""
        if ir.tensor_type(expr).shape == tuple(shape):
            return expr
        return self.call("broadcast_to", expr, shape=tuple(shape))

    def cut(self, expr: Expr, axis: int, begin: Extent, end: Extent) -> Expr:
        """Return the slice of `expr` from `begin` to `end` along `axis`; both are nonnegative."""
        shape = ir.tensor_type(expr).shape
        if begin == 0 and end == shape[axis]:
            return expr
        begins: list[Extent] = [0] * len(shape)
        # LARGEST as the end of an axis: its sign is known, that of a dynamic size may not be
        ends = [LARGEST if isinstance(extent, Dim) else extent for extent in shape]
        begins[axis] = begin
        ends[axis] = ends[axis] if end == shape[axis] else end
        strides = (1,) * len(shape)
        return self.call("strided_slice", expr, begin=tuple(begins), end=tuple(ends), strides=strides, axes=None)

    def concatenate(self, parts: Sequence[Expr], axis: int) -> Expr:
        """Return the parts concatenated along `axis`."""
        return parts[0] if len(parts) == 1 else self.call("concatenate", Tuple(tuple(parts)), axis=axis)


def _value(expr: Expr) -> npt.NDArray[Any] | None:
    """Return the known value of an expression: of a constant, or of a tensor without elements."""
    if isinstance(expr, Constant):
        return expr.data
    given = ir.tensor_type(expr)
    return np.zeros(given.shape, dtypes.to_numpy(given.dtype)) if 0 in given.shape else None


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


def shape_of(expr: Expr) -> tuple[Any, ...]:
    """Return the shape of a tensor expression."""
    return ir.tensor_type(expr).shape


def dtype_of(expr: Expr) -> str:
    """Return the dtype of a tensor expression."""
    return ir.tensor_type(expr).dtype


def is_float(expr: Expr) -> bool:
    """Return whether the elements of a tensor expression are floating-point numbers."""
    return dtypes.is_float(dtype_of(expr))


def int64(node: Node, value: Any) -> Expr:
    """Return integers or dimension expressions as an int64 tensor."""
    return node.constant(value, "int64")


def exceeds_halves(node: Node) -> bool:
    """Return whether a real attribute is infinite or 0 as float16, so that the operator is computed in float32."""
    reals = [value for value in node.attributes.values() if isinstance(value, float)]
    with np.errstate(over="ignore"):
        return any(value and not 0.0 < abs(np.float16(value)) < inf for value in reals)


def wide(node: Node, expr: Expr) -> Expr:
    """Return a tensor in the dtype of the computation: float32 for 16-bit floats."""
    return node.cast(expr, "float32") if dtype_of(expr) in dtypes.HALVES else expr
