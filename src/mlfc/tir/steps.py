"""A model whose course depends on the run, as a list of steps: what the virtual machine does, before memory is planned.

Branches and loops are labels and jumps in one list. Values are those of `tir.ir`; a value of the kind ``variable`` is
written by `Assign` alone, from several places: a result of branches, or what a loop carries. Symbols are variables,
too: `Define` and `Rebind` write them, and every `Dim` of a later step means what they hold then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mlfc.support.dims import Extent, Symbol
from mlfc.tir.ir import KernelCall, Program, Value


@dataclass(frozen=True, eq=False)
class Label:
    """A place that steps go to."""

    name: str  # for the reader


@dataclass(frozen=True, eq=False)
class Mark:
    """Where a label is."""

    label: Label


@dataclass(frozen=True, eq=False)
class Goto:
    """Go on at a label."""

    label: Label


@dataclass(frozen=True, eq=False)
class Unless:
    """Go on at a label where a bool of one element is false."""

    condition: Value
    label: Label


@dataclass(frozen=True, eq=False)
class UnlessEqual:
    """Go on at a label unless symbols have certain values."""

    values: tuple[tuple[Symbol, int], ...]
    label: Label


@dataclass(frozen=True, eq=False)
class Define:
    """Let a symbol be an extent of a tensor, or where `axis` is None its only element, which lies within its bounds."""

    symbol: Symbol
    source: Value
    axis: int | None = None


@dataclass(frozen=True, eq=False)
class Rebind:
    """Let symbols be expressions of symbols, all at once."""

    symbols: tuple[Symbol, ...]
    extents: tuple[Extent, ...]


@dataclass(frozen=True, eq=False)
class Limit:
    """Refuse to go on where an extent is outside the bounds of the symbol that it is to be."""

    symbol: Symbol
    extent: Extent


@dataclass(frozen=True, eq=False)
class Require:
    """Refuse to go on unless an extent of a tensor is what its type says."""

    source: Value
    axis: int
    extent: Extent


@dataclass(frozen=True, eq=False)
class Invoke:
    """Call a kernel."""

    call: KernelCall


@dataclass(frozen=True, eq=False)
class Assign:
    """Let variables be other values, all at once."""

    variables: tuple[Value, ...]
    sources: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class ListStep:
    """An operator on lists of tensors.

    Lists are values of the kind ``list``, whose shape is that of their elements with the most dimensions. A result that
    is a tensor is read from a list, where it is of the kind ``variable``, or put together. `fresh` are symbols of its
    shape that it defines, `ranks` how many dimensions the tensors of the list that it reads have.
    """

    operator: str  # Relay's name
    inputs: tuple[Value, ...]
    output: Value
    fresh: tuple[Symbol, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)  # Relay's
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Return:
    """End the run with the model's outputs."""

    outputs: tuple[Value, ...]


Step: TypeAlias = (
    "Mark | Goto | Unless | UnlessEqual | Define | Rebind | Limit | Require | Invoke | Assign | ListStep | Return"
)


@dataclass(frozen=True, eq=False)
class SteppedProgram:
    """A model as steps; `program` has its kernels and constants, and all calls in the order of the list.

    The steps read states as inputs and return their next values, behind the others. `first` are the constants that
    states begin with, None for zeros.
    """

    program: Program
    steps: tuple[Step, ...]
    first: tuple[Value | None, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs, and then the states."""
        return (*self.program.inputs, *(state.before for state in self.program.states))

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs, and then the next values of the states."""
        return (*self.program.outputs, *(state.after for state in self.program.states))


def sources_of(step: Step) -> tuple[Value, ...]:
    """Return the values that a step reads."""
    if isinstance(step, Invoke):
        return step.call.inputs
    if isinstance(step, Assign):
        return step.sources
    if isinstance(step, ListStep):
        return step.inputs
    if isinstance(step, Unless):
        return (step.condition,)
    if isinstance(step, (Define, Require)):
        return (step.source,)
    return step.outputs if isinstance(step, Return) else ()
