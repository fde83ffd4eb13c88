"""The graph IR: a typed, functional subset of Relay.

Expressions form a directed acyclic graph of immutable nodes compared by identity. Each node is typed when it is
constructed: `call` runs the operator's type rule, so nodes are never untyped and no inference pass is needed. Build
nodes with the functions and classes here; rewrite graphs with `visitor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError, MlfcError, TypeCheckError
from mlfc.relay.op import OPERATORS, Kind, Operator, Trait
from mlfc.support import dims, dtypes
from mlfc.support.cost import spend
from mlfc.support.dims import Extent, Shape, Symbol
from mlfc.support.tensor_info import Container
from mlfc.support.text import Displayed, shortened

Attrs: TypeAlias = Mapping[str, Any]
# limit on characters of types and attributes in a message, as a text can make them as long as itself
_SHOWN = 1_000


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a dense row-major tensor; a scalar has the empty shape.

    Extents are integers, or `Dim` for dynamic dimensions.
    """

    shape: Shape
    dtype: str

    @property
    def size(self) -> Any:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> Any:
        """Bytes of the dense tensor."""
        return self.size * dtypes.nbytes(self.dtype)

    @property
    def is_static(self) -> bool:
        """True if all dimensions are static."""
        return dims.is_static(self.shape)

    def __str__(self) -> str:
        if not self.shape:
            return self.dtype
        return f"Tensor[({', '.join(map(str, self.shape))}), {self.dtype}]"


@dataclass(frozen=True)
class TupleType:
    """Types of the fields of a tuple."""

    fields: tuple[Type, ...]

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.fields))
        return f"({inner},)" if len(self.fields) == 1 else f"({inner})"


@dataclass(frozen=True)
class ListType:
    """A list of tensors whose length is only known at run time.

    If an extent of `element` is a symbol that does not occur elsewhere in the function, it may differ between elements:
    an operator that reads an element takes the symbol's value from its shape. If the numbers of dimensions differ,
    `element` is the type of the tensors with the fewest, and `others` are the types of the rest, one per number of
    dimensions.
    """

    element: TensorType
    others: tuple[TensorType, ...] = ()

    def __post_init__(self) -> None:
        if [*self.ranks] != sorted({*self.ranks}) or len({kind.dtype for kind in self.elements}) > 1:
            raise TypeCheckError(f"{self}: expected one dtype, and types with more and more dimensions")

    @property
    def elements(self) -> tuple[TensorType, ...]:
        """The types of its tensors, by ascending number of dimensions."""
        return (self.element, *self.others)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The possible numbers of dimensions of its tensors."""
        return tuple(len(kind.shape) for kind in self.elements)

    def __str__(self) -> str:
        return f"List[{', '.join(map(str, self.elements))}]"


@dataclass(frozen=True)
class FuncType:
    """Type of a function: parameter types and result type."""

    params: tuple[Type, ...]
    result: Type

    def __str__(self) -> str:
        return f"fn ({', '.join(map(str, self.params))}) -> {self.result}"


Type: TypeAlias = "TensorType | TupleType | ListType | FuncType"


@dataclass(frozen=True)
class Span:
    """Origin of an expression in the user's model."""

    # names of the original nodes that this expression computes (in part); several after fusion
    nodes: tuple[str, ...] = ()
    # name of the original tensor whose value this expression is. Only the last expression of an original node has it;
    # layer-by-layer comparison uses it.
    tensor: str | None = None

    @property
    def place(self) -> str | None:
        """The nodes, formatted for messages."""
        return ", ".join(self.nodes) or None

    def merged(self, other: Span) -> Span:
        """Return a span of the nodes of both, in order, with the tensor of this one."""
        extra = tuple(name for name in other.nodes if name not in self.nodes)
        return Span(self.nodes + extra, self.tensor)


NO_SPAN = Span()


@dataclass(frozen=True, eq=False)
class Var:
    """A function parameter."""

    name: str
    type: TensorType | TupleType | ListType
    span: Span = NO_SPAN

    # TVM's names
    name_hint = property(lambda self: self.name)
    checked_type = property(lambda self: self.type)


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor whose value is known. `name` is that of the original tensor, if there is one."""

    data: npt.NDArray[Any]
    name: str | None = None
    span: Span = NO_SPAN
    type: TensorType = field(init=False)

    def __post_init__(self) -> None:
        # ascontiguousarray makes a scalar one-dimensional, so the shape is restored
        contiguous = np.ascontiguousarray(self.data)
        if contiguous.flags.writeable:  # a read-only array is the memory of another constant, or of the file
            spend("constants", contiguous.nbytes, self.name or self.span.place)
        data = contiguous.reshape(np.shape(self.data))
        data.flags.writeable = False
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "type", TensorType(data.shape, dtypes.from_numpy(data.dtype)))


@dataclass(frozen=True, eq=False)
class Call:
    """An operator or a function applied to arguments. Create it with `call` or `call_function`."""

    op: Operator | Function | GlobalVar
    args: tuple[Expr, ...]
    attrs: Attrs
    type: Type
    span: Span = NO_SPAN

    # graphs share nodes, so printing all arguments could take exponential time
    def __repr__(self) -> str:
        return f"<Call of {getattr(self.op, 'name', 'a function')}: {self.type}>"


@dataclass(frozen=True, eq=False)
class Tuple:
    """Several values grouped into one."""

    fields: tuple[Expr, ...]
    span: Span = NO_SPAN

    @cached_property
    def type(self) -> TupleType:
        """Types of the fields."""
        return TupleType(tuple(item.type for item in self.fields))

    def __repr__(self) -> str:
        return f"<Tuple: {self.type}>"


@dataclass(frozen=True, eq=False)
class TupleGetItem:
    """One field of a tuple."""

    value: Expr
    index: int
    span: Span = NO_SPAN

    @cached_property
    def type(self) -> Type:
        """Type of the field."""
        if not isinstance(self.value.type, TupleType) or not 0 <= self.index < len(self.value.type.fields):
            raise TypeCheckError(f"field {self.index} does not exist in {self.value.type}")
        return self.value.type.fields[self.index]


@dataclass(frozen=True, eq=False)
class GlobalVar:
    """A reference to a function of the module by name."""

    name: str
    type: FuncType
    span: Span = NO_SPAN


@dataclass(frozen=True, eq=False)
class If:
    """Conditional call: the result of one of two functions of the module, applied to the same arguments."""

    condition: Expr  # a bool of one element
    then: GlobalVar
    otherwise: GlobalVar
    args: tuple[Expr, ...]
    # type of the result. Symbols that occur nowhere else are defined by the result: readers take them from its shape.
    type: Type
    span: Span = NO_SPAN

    def __repr__(self) -> str:
        return f"<If of @{self.then.name} and @{self.otherwise.name}: {self.type}>"


@dataclass(frozen=True, eq=False)
class Function:
    """A function. A fused group is a Function with the attribute ``Primitive=1``.

    Symbols in its types and attributes are those of its parameters' extents, those of the results of `If` and of calls
    of functions, and those of the attribute ``defines``, a tuple of `Symbol`: the last fields of the body are integers
    of one element, which are the values of these symbols and are not results.
    """

    params: tuple[Var, ...]
    body: Expr
    attrs: Attrs = field(default_factory=dict)
    span: Span = NO_SPAN

    @property
    def type(self) -> FuncType:
        """Parameter and result types; the values of ``defines`` are not results."""
        return FuncType(tuple(param.type for param in self.params), visible(self.body.type, len(self.defines)))

    @property
    def defines(self) -> tuple[Symbol, ...]:
        """The symbols whose values are the last fields of the body."""
        return tuple(self.attrs.get("defines", ()))

    def __repr__(self) -> str:
        return f"<Function of {len(self.params)} parameters: {self.body.type}>"


Expr: TypeAlias = "Var | Constant | Call | Tuple | TupleGetItem | GlobalVar | If | Function"


@dataclass(frozen=True)
class Quantization:
    """Quantization parameters of an integer tensor: ``real = scale * (value - zero_point)``."""

    scale: float
    zero_point: int


@dataclass(frozen=True, eq=False)
class State:
    """A tensor that the model keeps from one run to the next: an input, and the output that is its next value.

    Both have one shape and dtype. Callers see neither; the state is named after its input.
    """

    input: str
    output: str
    initial: npt.NDArray[Any] | None = None  # before the first run, and after a reset; None for zeros


@dataclass(frozen=True, eq=False, repr=False)
class IRModule(Displayed):
    """Functions by name; ``main`` is the model."""

    functions: Mapping[str, Function]
    output_names: tuple[str, ...] = ()  # original names of the results of ``main``, in order
    # for inputs and outputs of the model (by name) whose integers represent real numbers
    quantization: Mapping[str, Quantization] = field(default_factory=dict)
    # facts about the source file: ``format``, ``sha256``, ``name``
    source: Mapping[str, str] = field(default_factory=dict)
    numerics: str = "litert"  # integer rounding that the importer chose: ``litert`` or ``tflm``
    # external code generators in order of priority; they run before the compiler
    byoc: tuple[str, ...] = ()
    # inputs of the model that the user fixed to constants, which ``main`` does not have
    frozen: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    states: tuple[State, ...] = ()  # inputs and outputs of ``main`` that the compiled model manages internally
    # sequences and optionals among the model's inputs and outputs; ``main`` has their parts
    containers: tuple[Container, ...] = ()

    @property
    def main(self) -> Function:
        """The model's function."""
        return self.functions["main"]

    def __getitem__(self, name: str) -> Function:
        """Return a function by name."""
        return self.functions[name]

    @property
    def outputs(self) -> tuple[Expr, ...]:
        """The results of ``main`` that are outputs: all but the values of the symbols that it defines."""
        body = self.main.body
        fields = body.fields if isinstance(body, Tuple) else (body,)
        return fields[: len(fields) - len(self.main.attrs.get("defines", ()))]

    def _facts(self) -> Mapping[str, object]:
        parameters = f"{len(self.main.params)} parameters" if "main" in self.functions else "-"
        return {"functions": list(self.functions), "main": parameters, "outputs": self.output_names}

    def with_main(self, main: Function) -> IRModule:
        """Return a copy of the module with the function `main` as ``main``."""
        return replace(self, functions={**self.functions, "main": main})

    def with_body(self, body: Expr) -> IRModule:
        """Return a copy of the module with `body` as the body of ``main``."""
        main = self.main
        return self if body is main.body else self.with_main(Function(main.params, body, main.attrs, main.span))


def call(name: str, args: Sequence[Expr], attrs: Attrs | None = None, *, span: Span = NO_SPAN, **more: Any) -> Call:
    """Apply the operator `name`, checking attributes and types.

    `name`: Relay operator name, such as ``nn.conv2d``.
    `attrs` and `more`: attributes; what is left out takes its declared default.
    Raises TypeCheckError if the operator does not take these arguments or attributes; the place names the span's
    nodes.
    """
    operator = OPERATORS.get(name)
    place = "/".join(span.nodes) or name
    try:
        full = operator.complete({**(attrs or {}), **more})
        if operator.num_inputs is not None and len(args) != operator.num_inputs:
            raise TypeCheckError(f"{name}: expected {operator.num_inputs} arguments, got {len(args)}")
        result = operator.infer([arg.type for arg in args], full)
        _check_narrow(operator, [arg.type for arg in args], result)
    except TypeCheckError as error:
        error.place = error.place or place
        raise
    except MlfcError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        given = shortened(", ".join(str(arg.type) for arg in args), _SHOWN)
        if dynamic := dims.symbols_of(extents_of(arg.type for arg in args)):
            expected = f"expected static dimensions, got {', '.join(map(str, dynamic))}"
            cause = error if isinstance(error, dims.UndecidedError) else expected
            raise TypeCheckError(f"{name} of ({given}): {cause}", place=place, next_step=FIX_EXTENT) from error
        attributes = shortened(str(dict(full)), _SHOWN)
        raise TypeCheckError(f"{name} does not take ({given}) with {attributes}: {error}", place=place) from error
    spend("operators", 1, place)
    return Call(operator, tuple(args), full, result, span)


FIX_EXTENT = "Declare model inputs with a shape in which it is static"


def _check_narrow(operator: Operator, types: Sequence[Type], result: Type) -> None:
    """Refuse tensors of narrow dtypes unless the operator supports them; views accept any bytes."""
    if operator.takes_narrow or operator.kind in (Kind.VIEW, Kind.OPAQUE, Kind.LIST):
        return
    for item in (*types, result):
        for kind in item.fields if isinstance(item, TupleType) else (item,):
            if isinstance(kind, TensorType) and dtypes.is_narrow(kind.dtype):
                raise TypeCheckError(f"{operator.name} takes no {kind.dtype} tensors", next_step="Put a cast before it")


def visible(body: Type, hidden: int) -> Type:
    """Return the type of a function's result from that of its body, whose last `hidden` fields are not results."""
    if not hidden or not isinstance(body, TupleType) or len(body.fields) <= hidden:
        return body
    shown = body.fields[:-hidden]
    return shown[0] if len(shown) == 1 else TupleType(shown)


def call_function(
    function: Function | GlobalVar,
    args: Sequence[Expr],
    *,
    type: Type | None = None,  # noqa: A002
    span: Span = NO_SPAN,
) -> Call:
    """Apply a function to arguments of its parameter types; the parameters' symbols match the arguments' extents.

    `type`: that of the result, with its own symbols for extents that only the function determines; see `defined_by`.
    Default: with the function's symbols, which is only valid for a single call.
    Raises TypeCheckError for arguments of other types.
    """
    result = applied(function, args)
    if type is not None and defined_by(type, [result]) is None:
        raise TypeCheckError(f"a function that returns {result[0]} does not match the type {type}")
    return Call(function, tuple(args), {}, type or result[0], span)


def if_else(
    condition: Expr,
    then: GlobalVar,
    otherwise: GlobalVar,
    args: Sequence[Expr],
    *,
    type: Type | None = None,  # noqa: A002
    span: Span = NO_SPAN,
) -> If:
    """Apply one of two functions, selected by a condition, to the same arguments.

    `type`: that of the result, with its own symbols for extents in which the functions differ. Default: the common
    result type.
    Raises TypeCheckError for a condition that is not a bool of one element, arguments that do not match a function's
    parameters, and results of other types.
    """
    kind = condition.type
    if not isinstance(kind, TensorType) or kind.dtype != "bool" or not kind.is_static or kind.size != 1:
        raise TypeCheckError(f"expected a condition of one bool, got {kind}")
    results = [applied(function, args) for function in (then, otherwise)]
    one, other = (result for result, _ in results)
    if type is None and one != other:
        raise TypeCheckError(f"the functions of an if return different types {one} and {other}")
    if defined_by(type or one, results) is None:
        raise TypeCheckError(f"functions that return {one} and {other} do not match an if of {type or one}")
    return If(condition, then, otherwise, tuple(args), type or one, span)


def applied(function: Function | GlobalVar, args: Sequence[Expr]) -> tuple[Type, frozenset[Symbol]]:
    """Return the result type of a function for arguments, and the symbols in it that the arguments do not determine."""
    kind = function.type
    given = [arg.type for arg in args]
    found = bound_symbols(kind.params, given)
    if found is None:
        raise TypeCheckError(f"a function of type {kind} cannot be applied to ({', '.join(map(str, given))})")
    known = {symbol for param in kind.params for symbol in type_symbols(param)}
    return substituted(kind.result, found), frozenset(type_symbols(kind.result)) - known


def defined_by(kind: Type, results: Sequence[tuple[Type, frozenset[Symbol]]]) -> frozenset[Symbol] | None:
    """Return the symbols whose values are read at run time from the shape of a result of type `kind`.

    `results` are the result types of the functions that may be called, and the symbols that only they determine, as
    returned by `applied`. Returns None if one of them does not match `kind`.
    """
    defined: set[Symbol] = set()
    for result, own in results:
        found = in_place_of_symbols([kind], [result])
        if substituted(kind, found) != result:
            return None
        defined.update(symbol for symbol, actual in found.items() if symbol in own or actual != symbol.dim)
    return frozenset(defined)


def type_symbols(kind: Type) -> list[Symbol]:
    """Return the symbols in the extents of a type, each once, in order of appearance."""
    return dims.symbols_of(extents_of([kind]))


def attribute_symbols(attrs: Attrs) -> list[Symbol]:
    """Return the symbols in attributes, each once, in order of appearance."""

    def extents(values: Iterable[Any]) -> Iterator[dims.Dim]:
        for value in values:
            if isinstance(value, (tuple, list)):
                yield from extents(value)
            elif isinstance(value, (Symbol, dims.Dim)):
                yield value.dim if isinstance(value, Symbol) else value

    return dims.symbols_of(extents(attrs.values()))


def bound_symbols(params: Sequence[Type], given: Sequence[Type]) -> dict[Symbol, Extent] | None:
    """Return the values of the symbols in parameter types for arguments of given types; None if they do not match."""
    found = in_place_of_symbols(params, given)
    return found if [substituted(kind, found) for kind in params] == list(given) else None


def in_place_of_symbols(kinds: Iterable[Type], given: Iterable[Type]) -> dict[Symbol, Extent]:
    """Return, for each symbol in types, the first extent at the same position in other types."""
    found: dict[Symbol, Extent] = {}
    for extent, actual in zip(extents_of(kinds), extents_of(given), strict=False):
        if isinstance(extent, dims.Dim) and extent.symbol is not None:
            found.setdefault(extent.symbol, actual)
    return found


def substituted(kind: Type, values: Mapping[Symbol, Extent]) -> Type:
    """Return a type with values substituted for symbols."""
    if not values:
        return kind
    if isinstance(kind, TensorType):
        return TensorType(tuple(dims.substituted(extent, values) for extent in kind.shape), kind.dtype)
    if isinstance(kind, TupleType):
        return TupleType(tuple(substituted(item, values) for item in kind.fields))
    if isinstance(kind, ListType):
        element, *others = (substituted(item, values) for item in kind.elements)
        return ListType(element, tuple(others))  # type: ignore[arg-type]  # tensors as before
    return FuncType(tuple(substituted(item, values) for item in kind.params), substituted(kind.result, values))


def tensors(kinds: Iterable[Type]) -> Iterator[TensorType]:
    """Yield the tensor types within types, from left to right."""
    for kind in kinds:
        if isinstance(kind, TensorType):
            yield kind
        elif isinstance(kind, TupleType):
            yield from tensors(kind.fields)
        elif isinstance(kind, ListType):
            yield from kind.elements


def extents_of(kinds: Iterable[Type]) -> Iterator[Extent]:
    """Yield the extents of the tensor types within types, from left to right."""
    for tensor in tensors(kinds):
        yield from tensor.shape


def const(value: npt.ArrayLike, dtype: str | None = None, *, name: str | None = None, span: Span = NO_SPAN) -> Constant:
    """Return a Constant of `value`; Python numbers become int32 or float32 unless `dtype` is set."""
    array = np.asarray(value)
    if dtype is None and not isinstance(value, (np.ndarray, np.generic)):
        dtype = {"f": "float32", "i": "int32", "b": "bool"}.get(array.dtype.kind)
    return Constant(array if dtype is None else array.astype(dtypes.to_numpy(dtype)), name, span)


def tensor_type(expr: Expr) -> TensorType:
    """Return the type of an expression that must be a tensor."""
    if not isinstance(expr.type, TensorType):
        raise InternalError(f"expected a tensor, found {expr.type}")
    return expr.type


def operator(expr: Expr) -> Operator | None:
    """Return the operator if the expression is an operator call, else None."""
    return expr.op if isinstance(expr, Call) and isinstance(expr.op, Operator) else None


def op_name(expr: Expr) -> str | None:
    """Return the operator's name if the expression is an operator call, else None."""
    called = operator(expr)
    return called.name if called is not None else None


def has_trait(expr: Expr, trait: Trait) -> bool:
    """Tell whether the expression is a call of an operator with one of these traits."""
    called = operator(expr)
    return called is not None and bool(called.traits & trait)
