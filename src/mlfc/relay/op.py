"""Declarations of operators: attributes, type rule, fusion kind and loop-level rule; `mlfc.ops` registers them."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.registry import Registry


class Kind(enum.Enum):
    """Fusion class of an operator, in TVM's order."""

    ELEMENTWISE = "elementwise"  # output[i] depends on every input at the same i (scalars broadcast)
    BROADCAST = "broadcast"  # as above with numpy broadcasting
    INJECTIVE = "injective"  # output[i] depends on inputs at indices computed from i
    REDUCE = "reduce"  # has its own loops; reads its inputs through functions, so injective producers fuse in
    ANCHOR = "anchor"  # has its own loops over buffers; elementwise consumers fuse onto its result
    VIEW = "view"  # the same bytes with another shape: never computes, shares storage
    OPAQUE = "opaque"  # rewritten before lowering; has no loop-level rule
    LIST = "list"  # takes or returns a list of tensors: an instruction of the program, without loops
    EXTERNAL = "external"  # computed by an external code generator: never fuses, requires its inputs in memory


POINTWISE = (Kind.ELEMENTWISE, Kind.BROADCAST)


class Layout(enum.Enum):
    """Support for operands whose axes are in another order than the graph declares; see `layout_rules`."""

    LOGICAL = "logical"  # in the declared order only
    POINTWISE = "pointwise"  # in any order, the same for all operands
    CHANNELS_LAST = "channels last"  # the attribute `layout`
    CONVOLUTION = "convolution"  # the attributes `data_layout` and `kernel_layout`
    AXIS = "axis"  # any order of the first operand: `axis` is one axis of it, or several, and all axes are kept
    IMAGES = "images"  # as AXIS, but the first axis stays first
    OPERAND_AXES = "operand axes"  # as POINTWISE: `lhs_axis` and `rhs_axis` are axes of the first two operands
    REDUCE = "reduce"  # any order of the first operand: `axis` is removed, or kept with `keepdims`
    BROADCAST = "broadcast"  # any order: `shape` is that of the result
    CONCATENATE = "concatenate"  # any order, the same for all fields of the first operand: `axis`
    SLICE = "slice"  # any order of the first operand: `axes`
    PAD = "pad"  # any order of the first operand: `pad_width` has a pair for each axis
    TRANSPOSE = "transpose"  # any order: `axes` is permuted accordingly
    VIEW = "view"  # any order in which merged or split axes are adjacent


class Elements(enum.Enum):
    """Relation of the elements of a result to those of the first operand."""

    SAME = "same"  # the same elements in the same order in memory
    CONVERTED = "converted"  # as SAME, converted to another dtype
    MOVED = "moved"  # each is one of them, selected by its position
    EXTREME = "extreme"  # each is the largest or smallest of several of them
    AVERAGED = "averaged"  # each is a mean of several of them
    COMPUTED = "computed"


class Trait(enum.Flag):
    """Facts about an operator that passes query."""

    NONE = 0
    NEUTRAL = enum.auto()  # the identity if the result has the type of the first operand
    SUM = enum.auto()  # adds or subtracts its two operands
    PRODUCT = enum.auto()  # its last float operation is a multiplication, which a compiler may fuse with a sum
    QUANTIZES = enum.auto()  # rounds real numbers to codes, by a scale and a zero point
    BIAS = enum.auto()  # adds a vector along `axis`, which accumulators may start with
    COMPARISON = enum.auto()  # compares two operands element by element
    LOGIC = enum.auto()  # combines bools element by element
    SELECTION = enum.auto()  # each element is one of the second or of the third operand
    POSITION = enum.auto()  # each element is the position of an extreme element of the operand along `axis`
    PICK = enum.auto()  # reads elements of the first operand at positions in the second, along `axis`
    PUT = enum.auto()  # writes elements of the first operand at positions in the second, along `axis`
    TUPLES = enum.auto()  # of PICK and PUT: positions are tuples, along the first axis of the second operand
    READS_ONCE = enum.auto()  # of kind REDUCE: its loops read each element of the operands once
    SHAPE = enum.auto()  # its elements are dimension expressions, the attribute `values`
    SHAPE_OF = enum.auto()  # reads the shape of its operand and none of its elements
    CLOSING = enum.auto()  # ends a layer: a bias, or rounding and clamping its result
    AT_POSITION = enum.auto()  # of kind LIST: the second operand is a position in the list
    TRANSPOSED = enum.auto()  # distributes each element of the data over a window of the result
    NOT_IN_TVM = enum.auto()  # TVM 0.14 lacks it, and `in_tvm` is missing or may return None


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED: Any = _Required()


@dataclass(frozen=True)
class Attr:
    """One declared attribute."""

    name: str
    default: Any = REQUIRED
    is_float: bool = False  # integers print and parse as floats
    # Relay text of values that TVM does not have; empty if TVM does not have the attribute at all
    in_tvm: Mapping[str, str] | None = None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator."""

    name: str  # Relay's name
    num_inputs: int | None  # number of arguments; None if the type rule checks the number
    infer: Callable[[list[Any], Mapping[str, Any]], Any]  # the type rule; raises TypeCheckError
    kind: Kind
    attrs: tuple[Attr, ...] = ()  # in the order of the text form
    # for ELEMENTWISE, BROADCAST, INJECTIVE: ``(ctx, inputs, attrs, out_type) -> (indices -> Expr)``
    compute: Callable[..., Any] | None = None
    # for REDUCE and ANCHOR: ``(ctx, inputs, attrs, out) -> None`` that writes loops. See `mlfc.tir.context` for both.
    emit: Callable[..., None] | None = None
    # ``(attrs, out_type, *arrays) -> array | None``: evaluates constants at once if the order of operations cannot
    # matter; None if the loops must be interpreted
    of_constants: Callable[..., Any] | None = None
    takes_bias: bool = False  # the emitter initializes its accumulators with `out.bias` if it is set
    # ``(list[Type], attrs, out_type) -> int``, multiply-accumulates, for the cost tables
    macs: Callable[[list[Any], Mapping[str, Any], Any], Any] | None = None
    # costs more than a move or a sum of elements, so fusion never recomputes an element for several reads
    expensive: bool = False
    # an error in the last bit of a float argument may change the result by a whole step, so its producers must round as
    # the reference does: a module with such an operator forbids fused multiply-adds
    rounding_sensitive: bool = False
    # ``(args, attrs, out_type) -> Expr | None``: its Relay text in TVM's operators if TVM does not have it; None if TVM
    # does, or has none for these arguments
    in_tvm: Callable[..., Any] | None = None
    # accepts and returns tensors of narrow dtypes (`support.dtypes.NARROW`), whose elements its rule reads as bytes; a
    # rule that computes with them checks the dtype
    takes_narrow: bool = False
    # at least one window must fit into the data: extents of the result that the data does not have are at least 1
    slides: bool = False
    # support for operands whose axes are in another order; None for the default of the kind and the attributes
    layout: Layout | None = None
    elements: Elements = Elements.COMPUTED
    traits: Trait = Trait.NONE
    magnitude: float = 0.0  # upper bound of the magnitude of a result element; 0 if unbounded
    integer_of: str = ""  # the operator on real numbers whose result this one computes exactly, of their codes
    packed_of: str = ""  # the operator whose result this one computes, of a second operand that is packed codes
    # ``(types, attrs) -> (axis, axes)``: the axes of the result and of the second operand that count output channels;
    # the latter is empty if channels share weights
    filters: Callable[..., tuple[int, tuple[int, ...]]] | None = None
    # ``(types, attrs) -> [(extent, stride, before, after), ...] | None``: for each spatial dimension, the number of
    # data elements read for a result element, their stride, and the padding; None for irregular windows
    windows: Callable[..., list[tuple[int, int, int, int]] | None] | None = None
    contract: str = "exact"  # the numeric contract, one line: "exact", "at most 2 ULP of the correctly rounded result"
    doc: str = ""  # one line
    note: str = ""  # a remark on its result, which the C header repeats at outputs that it computes

    def __post_init__(self) -> None:
        if self.layout is None:
            names = {attr.name for attr in self.attrs}
            plain = Layout.AXIS if "axis" in names else Layout.POINTWISE
            plain = plain if self.kind in POINTWISE else Layout.VIEW if self.kind is Kind.VIEW else Layout.LOGICAL
            layouts = (layout for name, layout in _LAYOUT_OF_ATTRIBUTE.items() if name in names)
            object.__setattr__(self, "layout", next(layouts, plain))

    def complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all attributes in declared order, defaults filled in; refuse unknown and missing ones."""
        unknown = sorted(set(given) - {attr.name for attr in self.attrs})
        if unknown:
            raise TypeCheckError(
                f"{self.name} has no attribute {', '.join(unknown)}",
                next_step=f"It has: {', '.join(attr.name for attr in self.attrs) or 'none'}",
            )
        full = {}
        for attr in self.attrs:
            value = given.get(attr.name, attr.default)
            if value is REQUIRED:
                raise TypeCheckError(f"{self.name} needs the attribute {attr.name}")
            full[attr.name] = float(value) if attr.is_float and isinstance(value, int) else _frozen(value)
        return full


_LAYOUT_OF_ATTRIBUTE = {
    "data_layout": Layout.CONVOLUTION, "layout": Layout.CHANNELS_LAST, "pad_width": Layout.PAD,
    "lhs_axis": Layout.OPERAND_AXES, "exclude": Layout.REDUCE,
}  # fmt: skip
OPERATORS: Registry[Operator] = Registry("operator", "mlfc.ops", plugins=True)
KERNEL_PREFIX = "fused_"
"""The prefix of kernel names, before the names of their operators."""


@cache
def forms(field: str) -> Mapping[str, str]:
    """Return the operators that name another one in a field (``integer_of`` or ``packed_of``), by that operator."""
    return {of: name for name in OPERATORS if (of := getattr(OPERATORS.get(name), field))}


def kernel_operators(kernel: str) -> tuple[str, ...]:
    """Return the operators in the name of a kernel or its function, as far as the name is complete."""
    pattern, names = _kernel_names(len(OPERATORS))
    _, _, rest = kernel.partition(KERNEL_PREFIX)
    found, place = [], 0
    while (match := pattern.match(rest, place)) is not None:
        found.append(names[match[1]])
        place = match.end()
    return tuple(found)


@cache
def _kernel_names(_: int) -> tuple[re.Pattern[str], Mapping[str, str]]:
    names = {name.replace(".", "_"): name for name in OPERATORS}
    longest = sorted(names, key=lambda name: (-len(name), name))
    return re.compile(f"({'|'.join(map(re.escape, longest))})(?:_|$)"), names


def kernel_note(kernel: str) -> str:
    """Return the note of the operators in a kernel's name; empty if none has one."""
    return next(filter(None, (OPERATORS.get(name).note for name in kernel_operators(kernel))), "")
