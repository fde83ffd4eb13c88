"""What an operator is: its attributes, type rule, fusion kind and loop-level rule.

The operators themselves are declared in `mlfc.ops`, one place each; this file only says what a
declaration holds and keeps the table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.registry import Registry


class Kind(enum.Enum):
    """How an operator may be fused; the order is TVM's."""

    ELEMENTWISE = "elementwise"  # output[i] depends on every input at the same i (scalars broadcast)
    BROADCAST = "broadcast"  # as above with numpy broadcasting
    INJECTIVE = "injective"  # output[i] depends on inputs at indices computed from i
    REDUCE = "reduce"  # loops of its own; reads its inputs through functions, so injective producers fuse in
    ANCHOR = "anchor"  # loops of its own over buffers; elementwise consumers fuse onto its result
    VIEW = "view"  # the same bytes under another shape: never computes, shares storage
    OPAQUE = "opaque"  # rewritten before lowering; has no loop-level rule
    EXTERNAL = "external"  # an external code generator's: never fuses, wants its inputs in memory


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
    # what Relay text says in place of values that TVM does not have; empty where TVM has no such attribute at all
    in_tvm: Mapping[str, str] | None = None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator."""

    name: str  # Relay's name
    num_inputs: int | None  # number of arguments; None where the type rule counts them itself
    infer: Callable[[list[Any], Mapping[str, Any]], Any]  # the type rule; raises TypeCheckError
    kind: Kind
    attrs: tuple[Attr, ...] = ()  # in the order in which the text form prints them
    # for ELEMENTWISE, BROADCAST, INJECTIVE: ``(ctx, inputs, attrs, out_type) -> (indices -> Expr)``
    compute: Callable[..., Any] | None = None
    # for REDUCE and ANCHOR: ``(ctx, inputs, attrs, out) -> None`` that writes loops. See `mlfc.tir.context` for both.
    emit: Callable[..., None] | None = None
    # ``(attrs, out_type, *arrays) -> array | None``: the value for constants at once, where the order of steps cannot
    # matter; None where the loops have to be interpreted
    of_constants: Callable[..., Any] | None = None
    takes_bias: bool = False  # the emitter starts its accumulators with `out.bias` where that is given
    # ``(list[Type], attrs, out_type) -> int``, multiply-accumulates, for the cost tables
    macs: Callable[[list[Any], Mapping[str, Any], Any], Any] | None = None
    # more work than a move or a sum of elements, so fusion never computes an element where several of its reads are
    expensive: bool = False
    # a float argument that is off by its last bit may change the result by a whole step, so what computes it must
    # round as the reference does: a module with such an operator forbids fused multiply-adds
    rounding_sensitive: bool = False
    # ``(args, attrs, out_type) -> Expr``: what Relay text has in its place, of TVM's operators, where TVM does not
    # have it; None where it has
    in_tvm: Callable[..., Any] | None = None
    # takes and gives tensors of narrow dtypes (`support.dtypes.NARROW`), whose elements its rule reads as bytes; a rule
    # that computes with them asks for the dtype
    takes_narrow: bool = False
    # at least one window must fit into the data: extents of the result that the data do not have are at least 1
    slides: bool = False
    contract: str = "exact"  # the numeric contract, one line: "exact", "at most 2 ULP of the correctly rounded result"
    doc: str = ""  # one line
    note: str = ""  # a remark on its result, which the C header repeats at outputs that it computes

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


OPERATORS: Registry[Operator] = Registry("operator")


def kernel_note(kernel: str) -> str:
    """Return the note of the operator that a kernel, which is named after its operators, has; empty if none has one."""
    notes = (OPERATORS.get(name).note for name in OPERATORS if name.replace(".", "_") in kernel)
    return next(filter(None, notes), "")
