"""External code generators: a pattern table, and a function that produces code for matches."""

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
        Its name, for example ``conv2d``.
    pattern : Pattern
    accepts : callable ``(calls, features) -> bool``
        Returns True if the generator supports these calls, the last of which is the result, for a target.
    """

    name: str
    pattern: Pattern
    accepts: Callable[[Sequence[relay.Call], Features], bool] = lambda *_: True


@dataclass(eq=False)
class Subgraph:
    """A matched part of a graph during code generation; the rest of the compiler treats it as a kernel.

    Attributes
    ----------
    name : str
        Name of the entry in the pattern table.
    function : relay.Function
        The computation.
    features : Features
        Features of the target.
    inputs : tuple of Buffer
        One per parameter of the function.
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
        """Return the calls of these operators in order of execution; of all operators if no name is passed."""
        found = [expr for expr in post_order(self.function.body) if isinstance(expr, relay.Call)]
        return [call for call in found if not names or relay.op_name(call) in names]

    def call(self, name: str) -> relay.Call:
        """Return the only call of an operator."""
        (found,) = self.calls(name)
        return found

    def constant(self, name: str, array: npt.NDArray[Any]) -> Buffer:
        """Add a constant, passed to the function as a pointer; raise OptionError for an invalid or used name."""
        self._check(name)
        buffer = Buffer(name, array.shape, dtypes.from_numpy(array.dtype))
        self.constants.append((buffer, np.ascontiguousarray(array).reshape(array.shape)))
        return buffer

    def extent(self, name: str, value: Extent) -> None:
        """Define ``${name}`` in the text as an int64: a dimension size, or an expression of several.

        Raises OptionError as `constant` does, and for a number that is not determined by the part's shapes.
        """
        self._check(name, value)
        self.extents[name] = value

    def scratch(self, name: str, nbytes: Extent) -> Buffer:
        """Add workspace memory that the function has while it runs; raise OptionError as `constant` does."""
        self._check(name, nbytes)
        buffer = Buffer(name, (nbytes,), "int8", "scratch")
        self.scratch_buffers.append(buffer)
        return buffer

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers that the text may refer to: inputs, output, constants and scratch."""
        return (*self.inputs, self.output, *(buffer for buffer, _ in self.constants), *self.scratch_buffers)

    def _check(self, name: str, value: Extent = 0) -> None:
        """Raise OptionError for an invalid or used name, and for a number that no tensor's shape determines."""
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
                cause = f"the number '{name}' needs {symbol.name}, which is not a dimension of its tensors"
                raise OptionError(cause, place=place, next_step="This is a fault of the generator")


@dataclass(frozen=True)
class Generator:
    """An external code generator.

    Attributes
    ----------
    name : str
        Its key, and the folder of its code in archives.
    table : tuple of Composite
        Supported patterns; the first that matches is used.
    generate : callable ``(subgraph) -> External``
        Produces the code of one match.
    merges : bool
        Merge neighbouring matches into one subgraph.
    always : bool
        Use the generator even if the user did not name it: no other one supports its operators.
    module_bytes : callable ``(symbol, payload) -> bytes``, optional
        For results that are runtime modules of the kind `name`: their stored form with one function of that name.
    takes_open : bool
        Accept parts with dynamic dimensions. Statements refer to them by the names of `Subgraph.extent`.
    supply : str
        Requirements for building the code, in one sentence; empty if none.
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
    """Users add entries too, so an invalid entry raises an error at once."""

    def add(self, key: str, entry: Generator) -> Generator:
        """Add a generator under its name, which is also the name of a folder in archives."""
        if key in self._filled():
            raise OptionError(f"generator '{key}' is already registered", next_step="Rename yours")
        if key != entry.name:
            raise OptionError(f"the generator '{entry.name}' is added as '{key}'", next_step="Use one name for both")
        if not _NAME.fullmatch(key) or key == "host":
            raise OptionError(
                f"a generator cannot have the name '{key}'",
                next_step="Use up to 64 letters, digits, underscores and hyphens; host is taken",
            )
        return super().add(key, entry)


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
GENERATORS: Registry[Generator] = _Generators("external code generator", "mlfc.byoc", plugins=True)


def find_generators(names: Iterable[str]) -> tuple[Generator, ...]:
    """Return the generators of these names in their order, followed by those that are always used.

    Raises
    ------
    OptionError
        If a name is not registered, or is duplicated.
    """
    if isinstance(names, str):
        raise OptionError(f"expected a list of generators, got the string '{names}'", next_step=f"Pass ['{names}']")
    chosen = list(names)
    if len(set(chosen)) != len(chosen):
        raise OptionError("an external code generator is named twice", place=", ".join(chosen))
    found = [GENERATORS.get(name) for name in chosen]
    return (*found, *(entry for entry in map(GENERATORS.get, GENERATORS) if entry.always and entry not in found))


def supply_of(name: str) -> str:
    """Return the requirements for building the code of a generator; empty if it has none or is unknown here."""
    return GENERATORS.get(name).supply if name in GENERATORS else ""


def subgraph_of(function: relay.Function, features: Features) -> Subgraph:
    """Return the subgraph of a function that partitioning created."""
    inputs = tuple(_buffer(f"input{index}", param) for index, param in enumerate(function.params))
    name = str(function.attrs["Composite"])
    return Subgraph(name, function, features, inputs, _buffer("output", function.body))


def generated(generator: Generator, subgraph: Subgraph) -> External:
    """Return a generator's code for a subgraph; raise OptionError if its result is invalid."""
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
    """Return the fault in a generator's result, or None."""
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
            return "has a dollar sign without a name in its text; write $$ for a dollar sign"
        if name is not None and name not in known:
            return f"names an unknown buffer or number '{name}' in its text; known: {', '.join(known)}"
    return None


def generator_of(function: relay.Function) -> Generator | None:
    """Return the generator of a function's subgraph; None if the function is a group of the compiler itself."""
    name = function.attrs.get("Compiler")
    if name is None:
        return None
    if name not in GENERATORS:
        raise InternalError(f"a subgraph for the generator '{name}', which is not registered")
    return GENERATORS.get(name)


def takes_modules(body: relay.Expr) -> bool:
    """Return True if a partitioned subgraph is for a generator that produces runtime modules."""
    functions = (expr.op for expr in post_order(body) if isinstance(expr, relay.Call))
    found = (generator_of(function) for function in functions if isinstance(function, relay.Function))
    return any(generator is not None and generator.module_bytes is not None for generator in found)


def _buffer(name: str, expr: relay.Expr) -> Buffer:
    kind = relay.tensor_type(expr)
    return Buffer(name, kind.shape, kind.dtype)
