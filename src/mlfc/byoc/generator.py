"""What an external code generator is: a table of patterns, and a function that makes code of what they match."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.byoc.pattern import Pattern
from mlfc.errors import InternalError, OptionError
from mlfc.registry import Registry
from mlfc.relay import ir as relay
from mlfc.relay.visitor import post_order
from mlfc.support import dtypes
from mlfc.support.dims import Extent, symbols_of
from mlfc.target.features import Features
from mlfc.tir.extents import as_index
from mlfc.tir.ir import Buffer, External


@dataclass(frozen=True)
class Composite:
    """An entry of a pattern table.

    Attributes
    ----------
    name : str
        What it is called, such as ``conv2d``.
    pattern : Pattern
    accepts : callable ``(calls, features) -> bool``
        Whether the generator takes these calls, the last of which gives the result, for such a target.
    """

    name: str
    pattern: Pattern
    accepts: Callable[[Sequence[relay.Call], Features], bool] = lambda *_: True


@dataclass(eq=False)
class Subgraph:
    """A matched part of a graph while a generator makes its code; a kernel as the rest of the compiler sees it.

    Attributes
    ----------
    name : str
        Of the entry of the pattern table.
    function : relay.Function
        What is to be computed.
    features : Features
        Of the target.
    inputs : tuple of Buffer
        One a parameter of the function.
    output : Buffer
    """

    name: str
    function: relay.Function
    features: Features
    inputs: tuple[Buffer, ...]
    output: Buffer
    constants: list[tuple[Buffer, npt.NDArray[Any]]] = field(default_factory=list)
    scratch_buffers: list[Buffer] = field(default_factory=list)
    extents: dict[str, Extent] = field(default_factory=dict)

    def calls(self, *names: str) -> list[relay.Call]:
        """Return the calls of these operators in order of execution; of all operators without a name."""
        found = [expr for expr in post_order(self.function.body) if isinstance(expr, relay.Call)]
        return [call for call in found if not names or relay.op_name(call) in names]

    def call(self, name: str) -> relay.Call:
        """Return the one call of an operator."""
        (found,) = self.calls(name)
        return found

    def constant(self, name: str, array: npt.NDArray[Any]) -> Buffer:
        """Add a constant, which the function gets as a pointer; raise OptionError for a name that is none, or taken."""
        self._check(name)
        buffer = Buffer(name, array.shape, dtypes.from_numpy(array.dtype))
        self.constants.append((buffer, np.ascontiguousarray(array).reshape(array.shape)))
        return buffer

    def extent(self, name: str, value: Extent) -> None:
        """Let ``${name}`` in the text stand for a number, which is an int64: an extent, or what follows from several.

        Raises OptionError as `constant` does, and for a number that does not follow from those of the part's tensors.
        """
        self._check(name, value)
        self.extents[name] = value

    def scratch(self, name: str, nbytes: Extent) -> Buffer:
        """Add memory of the workspace that the function has while it runs; raise OptionError as `constant` does."""
        self._check(name, nbytes)
        buffer = Buffer(name, (nbytes,), "int8", "scratch")
        self.scratch_buffers.append(buffer)
        return buffer

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All that the text may name: inputs, output, constants and scratch."""
        return (*self.inputs, self.output, *(buffer for buffer, _ in self.constants), *self.scratch_buffers)

    def _check(self, name: str, value: Extent = 0) -> None:
        """Raise OptionError for a name that is none, or taken, and a number that no tensor's extents determine."""
        place = f"the generator's part '{self.name}'"
        taken = [*(buffer.name for buffer in self.buffers), *self.extents]
        if name in taken or re.fullmatch(Template.idpattern, name, re.ASCII) is None:
            raise OptionError(
                f"a buffer, or a number, cannot have the name '{name}'",
                place=place,
                next_step=f"Use letters, digits and underscores, and none of: {', '.join(taken)}",
            )
        known = symbols_of(extent for buffer in (*self.inputs, self.output) for extent in buffer.shape)
        for symbol in symbols_of([value]):
            if symbol not in known:
                cause = f"the number '{name}' needs {symbol.name}, which is in no extent of its tensors"
                raise OptionError(cause, place=place, next_step="This is a fault of the generator")


@dataclass(frozen=True)
class Generator:
    """An external code generator.

    Attributes
    ----------
    name : str
        Its key, and the folder of its code in archives.
    table : tuple of Composite
        What it takes, the first that matches before the others.
    generate : callable ``(subgraph) -> External``
        Makes the code of one match.
    merges : bool
        Whether neighbouring matches become one subgraph.
    always : bool
        Whether it is asked even if the user did not name it: nothing else can compute what it takes.
    module_bytes : callable ``(symbol, payload) -> bytes``, optional
        For results that are runtime modules of the kind `name`: their stored form with one function of that name.
    takes_open : bool
        Whether parts may have extents that only the run knows. Statements name them by `Subgraph.extent`.
    supply : str
        What users must add to build the code, in one sentence; empty for nothing.
    """

    name: str
    table: tuple[Composite, ...]
    generate: Callable[[Subgraph], External]
    merges: bool = False
    always: bool = False
    module_bytes: Callable[[str, bytes], bytes] | None = None
    takes_open: bool = False
    supply: str = ""


class _Generators(Registry[Generator]):
    """Users fill this table, too: what is wrong with an entry is their fault, and said at once."""

    def add(self, key: str, entry: Generator) -> Generator:
        """Add a generator under its name, which is one of a folder in archives."""
        if key in self:
            raise OptionError(f"there is a generator '{key}' already", next_step="Give yours another name")
        if key != entry.name:
            raise OptionError(f"the generator '{entry.name}' is added as '{key}'", next_step="Use one name for both")
        if not _NAME.fullmatch(key) or key == "host":
            raise OptionError(
                f"a generator cannot have the name '{key}'",
                next_step="Use up to 64 letters, digits, underscores and hyphens; host is taken",
            )
        return super().add(key, entry)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
GENERATORS: Registry[Generator] = _Generators("external code generator", "mlfc.byoc")


def find_generators(names: Iterable[str]) -> tuple[Generator, ...]:
    """Return the generators of these names in their order, and behind them those that are always asked.

    Raises
    ------
    OptionError
        For a name that is not registered, or given twice.
    """
    if isinstance(names, str):
        raise OptionError(f"generators are named in a list, and '{names}' is text", next_step=f"Give ['{names}']")
    chosen = list(names)
    if len(set(chosen)) != len(chosen):
        raise OptionError("an external code generator is named twice", place=", ".join(chosen))
    found = [GENERATORS.get(name) for name in chosen]
    return (*found, *(entry for entry in map(GENERATORS.get, GENERATORS) if entry.always and entry not in found))


def supply_of(name: str) -> str:
    """Return what users must add to build the code of a generator; empty for nothing, and if it is not known here."""
    return GENERATORS.get(name).supply if name in GENERATORS else ""


def subgraph_of(function: relay.Function, features: Features) -> Subgraph:
    """Return the subgraph of a function that partitioning made."""
    inputs = tuple(_buffer(f"input{index}", param) for index, param in enumerate(function.params))
    name = str(function.attrs["Composite"])
    return Subgraph(name, function, features, inputs, _buffer("output", function.body))


def generated(generator: Generator, subgraph: Subgraph) -> External:
    """Let a generator make its code of a subgraph; raise OptionError if that is none."""
    found = generator.generate(subgraph)
    fault = _fault(generator, subgraph, found)
    if fault is not None:
        nodes = dict.fromkeys(node for call in subgraph.calls() for node in call.span.nodes)
        raise OptionError(
            f"the external code generator '{generator.name}' {fault}",
            place=f"its part '{subgraph.name}', {', '.join(nodes)}" if nodes else f"its part '{subgraph.name}'",
            next_step="This is a fault of the generator",
        )
    extents = tuple((name, as_index(value, "int64")) for name, value in subgraph.extents.items())
    return replace(found, extents=extents) if extents else found


def _fault(generator: Generator, subgraph: Subgraph, found: object) -> str | None:
    """Return what is wrong with what a generator returned."""
    if not isinstance(found, External):
        return f"returned {type(found).__name__}, not External"
    if found.generator != generator.name:
        return f"returned code of '{found.generator}'"
    if found.module is not None:
        if generator.module_bytes is None:
            return "returned a runtime module, and has no module_bytes to store it"
        return "returned both text or objects and a runtime module" if found.text or found.objects else None
    if not found.text.strip():
        return "returned neither statements nor a runtime module"
    known = [*(buffer.name for buffer in subgraph.buffers), *subgraph.extents]
    for match in Template.pattern.finditer(found.text):
        name = match["named"] or match["braced"]
        if match["invalid"] is not None:
            return "has a dollar sign in its text that names nothing; $$ stands for one"
        if name is not None and name not in known:
            return f"names an unknown buffer or number '{name}' in its text; known: {', '.join(known)}"
    return None


def generator_of(function: relay.Function) -> Generator | None:
    """Return the generator whose subgraph a function is; None for one of the compiler's own groups."""
    name = function.attrs.get("Compiler")
    if name is None:
        return None
    if name not in GENERATORS:
        raise InternalError(f"a subgraph for the generator '{name}', which is not registered")
    return GENERATORS.get(name)


def takes_modules(body: relay.Expr) -> bool:
    """Tell whether a subgraph in a partitioned graph is for a generator that makes runtime modules."""
    functions = (expr.op for expr in post_order(body) if isinstance(expr, relay.Call))
    found = (generator_of(function) for function in functions if isinstance(function, relay.Function))
    return any(generator is not None and generator.module_bytes is not None for generator in found)


def _buffer(name: str, expr: relay.Expr) -> Buffer:
    kind = relay.tensor_type(expr)
    return Buffer(name, kind.shape, kind.dtype)
