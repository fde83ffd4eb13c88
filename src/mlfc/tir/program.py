"""A whole model at loop level: values, kernels and the instructions that call them.

In a dynamic model, branches and loops are labels and jumps in that list, `Define` and `SetSymbols` write the symbols
of dynamic dimensions, and every `Dim` of a later instruction has the value that its symbols have then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.dims import Extent, Shape, Symbol
from mlfc.support.module_info import RowTilingInfo
from mlfc.support.nodes import node
from mlfc.tir.ir import PrimFunc

COPY = "__copy"
"""Name of kernels that copy a tensor to another device: they have no code, executors implement them."""


@node(frozen=True, eq=False)
class Value:
    """A tensor of a program: model input or output, constant, intermediate or variable; or a list of tensors.

    A variable is only written by `Assign`, possibly at several places: it is a result of branches, or a loop-carried
    value. The shape of a list is that of its elements with the most dimensions.

    `alias_of`: this value is a view of another one: its bytes from `start` on, with another shape.
    `device`: the kind of device whose memory contains it; None for the host's. That of `root` applies.
    """

    name: str
    shape: Shape
    dtype: str
    kind: str  # input | output | constant | intermediate | state | variable | list
    data: npt.NDArray[np.generic] | None = None
    alias_of: Value | None = None
    start: int = 0
    device: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor; a `Dim` for dynamic shapes."""
        size: int = prod(self.shape)
        return size * dtypes.nbytes(self.dtype)

    @property
    def array(self) -> npt.NDArray[np.generic]:
        """The elements of a constant."""
        if self.data is None:
            raise InternalError(f"the constant '{self.name}' has no value")
        return self.data

    @property
    def root(self) -> Value:
        """The value that owns the bytes."""
        value = self
        while value.alias_of is not None:
            value = value.alias_of
        return value

    @property
    def root_start(self) -> int:
        """Offset of the bytes within those of `root`."""
        return self.start + (self.alias_of.root_start if self.alias_of is not None else 0)

    @property
    def is_whole(self) -> bool:
        """True if this value includes all bytes of its `root`, so that it is not a partial view."""
        return self.nbytes == self.root.nbytes


@node(frozen=True, eq=False)
class KernelCall:
    """One call of a kernel: arguments by position, and the original nodes it computes."""

    kernel: PrimFunc
    inputs: tuple[Value, ...]
    constants: tuple[Value, ...]
    output: Value
    nodes: tuple[str, ...] = ()
    numbers: tuple[Extent, ...] = ()  # values of the kernel's `PrimFunc.symbols` in this call

    @property
    def is_copy(self) -> bool:
        """True if it copies a tensor between devices; its kernel is not in `Program.kernels`."""
        return self.kernel.name == COPY


@node(frozen=True, eq=False)
class Label:
    """A jump target at its position in the list of instructions."""

    name: str  # for readers


@node(frozen=True, eq=False)
class Jump:
    """Continue at a label."""

    label: Label


@node(frozen=True, eq=False)
class Branch:
    """Continue at a label if a bool of one element is false."""

    condition: Value
    otherwise: Label


@node(frozen=True, eq=False)
class BranchOnSymbols:
    """Continue at a label unless every symbol has a certain value."""

    values: tuple[tuple[Symbol, int], ...]
    otherwise: Label


@node(frozen=True, eq=False)
class Define:
    """Set a symbol to a dimension of a tensor, or to its only element if `axis` is None, and check its bounds."""

    symbol: Symbol
    source: Value
    axis: int | None = None


@node(frozen=True, eq=False)
class SetSymbols:
    """Set symbols to expressions of symbols, all at once."""

    symbols: tuple[Symbol, ...]
    extents: tuple[Extent, ...]


@node(frozen=True, eq=False)
class CheckBounds:
    """Fail if an expression is outside the bounds of a symbol, which does not change."""

    symbol: Symbol
    extent: Extent


@node(frozen=True, eq=False)
class CheckDimension:
    """Fail if a dimension of a tensor differs from that of its type."""

    source: Value
    axis: int
    extent: Extent


@node(frozen=True, eq=False)
class Assign:
    """Set variables to other values in order; no source is a variable that an earlier pair sets."""

    variables: tuple[Value, ...]
    sources: tuple[Value, ...]


@node(frozen=True, eq=False)
class ListOperation:
    """An operator on lists of tensors.

    A tensor result is read from a list (of the kind ``variable``) or concatenated. `fresh` are the symbols of its shape
    that the operation defines, `ranks` the possible numbers of dimensions of the tensors in the list that it reads.
    """

    operator: str  # Relay's name
    inputs: tuple[Value, ...]
    output: Value
    fresh: tuple[Symbol, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)  # Relay's
    ranks: tuple[int, ...] = ()


@node(frozen=True, eq=False)
class Return:
    """End the run; return the outputs, then the next values of states."""

    outputs: tuple[Value, ...]


Instruction: TypeAlias = (
    "KernelCall | Label | Jump | Branch | BranchOnSymbols | Define | SetSymbols | CheckBounds | CheckDimension | "
    "Assign | ListOperation | Return"
)


def sources_of(instruction: Instruction) -> tuple[Value, ...]:
    """Return the values that an instruction reads, without the constants of kernels."""
    if isinstance(instruction, (KernelCall, ListOperation)):
        return instruction.inputs
    if isinstance(instruction, Assign):
        return instruction.sources
    if isinstance(instruction, Branch):
        return (instruction.condition,)
    if isinstance(instruction, (Define, CheckDimension)):
        return (instruction.source,)
    return instruction.outputs if isinstance(instruction, Return) else ()


def written_by(instruction: Instruction) -> tuple[Value, ...]:
    """Return the tensors that an instruction writes, without elements of lists."""
    if isinstance(instruction, KernelCall):
        return (instruction.output,)
    if isinstance(instruction, ListOperation):
        return (instruction.output,) if instruction.output.kind == "intermediate" else ()
    if isinstance(instruction, Assign):
        return tuple(value for value in instruction.variables if value.kind != "list")
    return ()


@node(frozen=True, eq=False)
class StateValue:
    """A tensor that is kept from one run to the next.

    `after` is computed by the program's calls, which do not depend on states; `memory.commit_states` stores it in
    `written`, which has the memory of `before`. A program with control flow returns it after its outputs.
    """

    before: Value  # the value that calls read: of the kind ``state``, or ``input`` of a program with control flow
    after: Value  # the next value: a separate intermediate, or `written` itself if a call writes it in place
    written: Value  # of the kind ``state``
    copy: KernelCall | None  # writes `after` to `written`; None if the executor does
    initial: Value | None = None  # the constant before the first run; None for zeros

    @property
    def begin(self) -> npt.NDArray[np.generic]:
        """The elements before the first run."""
        if self.initial is not None:
            return self.initial.array
        return np.zeros(self.before.shape, dtypes.to_numpy(self.before.dtype))


@node(frozen=True, eq=False)
class Program:
    """A whole model at loop level: values, kernels (each once) and instructions in the order of execution."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: tuple[Value, ...]
    kernels: tuple[PrimFunc, ...]
    instructions: tuple[Instruction, ...]
    contracts_floats: bool = True  # a float product and a sum may become one fused multiply-add
    overlaps: bool = False  # outputs may overlap the memory of inputs that are no longer used
    tiling: RowTilingInfo | None = None  # the layers that are tiled by rows, and the memory saved
    states: tuple[StateValue, ...] = ()

    @cached_property
    def calls(self) -> tuple[KernelCall, ...]:
        """The calls among the instructions."""
        return tuple(item for item in self.instructions if isinstance(item, KernelCall))

    @property
    def is_dynamic(self) -> bool:
        """True if it has instructions other than calls."""
        return len(self.calls) < len(self.instructions)

    @property
    def parameters(self) -> tuple[Value, ...]:
        """The values before the first instruction: inputs, then states."""
        return (*self.inputs, *(state.before for state in self.states))

    @property
    def results(self) -> tuple[Value, ...]:
        """The values after the last instruction: outputs, then the next values of states."""
        return (*self.outputs, *(state.after for state in self.states))

    @property
    def returned(self) -> frozenset[Value]:
        """The memory that is read after the last instruction: outputs and next values of states."""
        return frozenset(value.root for value in self.results)

    def __repr__(self) -> str:
        return f"<Program {self.name} of {len(self.calls)} calls>"

    def intermediates(self) -> Iterator[Value]:
        """Yield every value that needs workspace, each once: inputs stored there, then in the order of creation."""
        written = (value for item in self.instructions for value in written_by(item))
        roots = [value.root for value in (*self.inputs, *written)]
        yield from dict.fromkeys(root for root in roots if root.kind in ("intermediate", "variable"))


class Dataflow:
    """Origins of the values of a program, traced through views, parts, branches, loops and lists.

    A source is the position of a call in `Program.calls`, or -1 - k for the program's k-th input; states follow the
    inputs. Constants have no source.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._given = {value.root: -1 - place for place, value in reversed([*enumerate(program.parameters)])}
        self._written: dict[Value, list[tuple[int, Value]]] = {}
        for index, call in enumerate(program.calls):
            self._written.setdefault(call.output.root, []).append((index, call.output))
        self._assigned: dict[Value, list[Value]] = {}  # sources of variables and lists
        for step in program.instructions:
            if isinstance(step, Assign):
                for variable, source in zip(step.variables, step.sources, strict=True):
                    self._assigned.setdefault(variable, []).append(source)
            elif isinstance(step, ListOperation):
                self._assigned.setdefault(step.output, []).extend(step.inputs)

    def read_by(self, index: int) -> tuple[int, ...]:
        """Return the sources of a call's arguments, each once, in the order of the arguments."""
        call: KernelCall = self._program.calls[index]
        found = chain.from_iterable(self.sources(value, index) for value in call.inputs)
        return tuple(dict.fromkeys(found))

    def given_by_calls(self) -> Mapping[int, tuple[int, ...]]:
        """Return, by call, the positions of the outputs that it computes; next values of states follow the outputs.

        A state that a call writes in place is an output of that call.
        """
        found: dict[int, list[int]] = {}
        for place, value in enumerate(self._program.results):
            for source in dict.fromkeys(self.sources(value, len(self._program.calls))):
                if source >= 0:
                    found.setdefault(source, []).append(place)
        return {index: tuple(places) for index, places in found.items()}

    def sources(self, value: Value, before: int) -> Iterable[int]:
        """Yield the sources of a value that the call at position `before` reads."""
        seen, remaining = {value}, [value]
        while remaining:
            item = remaining.pop()
            root = item.root
            writers = self._written.get(root)
            if writers is not None:
                yield from (index for index, part in writers if index < before and _touches(part, item))
            elif root in self._assigned or item in self._assigned:
                known = self._assigned.get(item) or self._assigned[root]
                fresh = [source for source in known if source not in seen]
                seen.update(fresh)
                remaining += reversed(fresh)
                before = len(self._program.calls)  # a loop carries values that later calls compute
            elif root in self._given:
                yield self._given[root]


def _touches(written: Value, read: Value) -> bool:
    """Tell whether two parts of a tensor overlap; tensors with dynamic shapes are not divided into parts."""
    if written.is_whole or read.is_whole:
        return True
    first, second = written.root_start, read.root_start
    return first < second + read.nbytes and second < first + written.nbytes
