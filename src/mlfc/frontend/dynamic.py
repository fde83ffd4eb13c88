"""What an import keeps of what only the run decides: symbols, where each is defined, functions beside ``main``.

Every function of the module is a `Frame` while its body is imported. A symbol belongs to the frame whose values decide
it; a function that mentions one of another frame is given its value as a parameter, unless one of its parameters has it
as an extent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mlfc.frontend.common import unique_name
from mlfc.frontend.symbolic import Array, Noted, Quotient, elements, folded, known, symbolic_operands
from mlfc.relay import ir
from mlfc.relay.dynamic import extents_of
from mlfc.relay.ir import Call, Expr, Function, GlobalVar, ListType, TensorType, Tuple, Type, Var
from mlfc.relay.visitor import children, with_children
from mlfc.support import cost
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, symbols_of

# an optional without a value; its type is nothing else's
NOTHING = Tuple((Tuple(()),))
_SYMBOL_STEPS = 1 << 10


@dataclass(eq=False)
class Frame:
    """A function whose body is being imported."""

    defines: dict[Symbol, Expr] = field(default_factory=dict)  # symbols that are integers it computes
    # symbols that are extents of what an `If`, a call or a list gives: whose, and along which axis
    sources: dict[Symbol, tuple[Expr, int]] = field(default_factory=dict)
    known: dict[int, tuple[Expr, Any]] = field(default_factory=dict)  # extents by the integer that they are
    scaled: dict[tuple[Any, float], Any] = field(default_factory=dict)  # dimension sizes times numbers, rounded down
    # what every run of the function checks: symbols with one value
    required: list[tuple[Symbol, Expr]] = field(default_factory=list)


@dataclass
class Needs:
    """What a body takes from around it."""

    captured: list[Expr]
    symbols: list[Symbol]  # of other frames
    defines: list[tuple[Symbol, Expr]]  # those that the body needs


class SameExtents(Exception):  # noqa: N818  (not an error: the import restarts)
    """Substitutions of input symbols that a node requires; the import restarts with them."""

    def __init__(self, found: Mapping[Symbol, Extent]) -> None:
        super().__init__(str(found))
        self.found = found


class Dynamic:
    """Symbols and functions of the module that an import makes."""

    def __init__(
        self,
        choose: Callable[[str], bool] = bool,
        *,
        mixes: bool = True,
        replaced: Mapping[Symbol, Extent] | None = None,
    ) -> None:
        self.choose = choose  # of two ways to import a node, which the run checks, whether it is the first
        self.mixes = mixes  # whether tensors of a list may differ in how many dimensions they have
        self.functions: dict[str, Function] = {}
        self.replaced = replaced or {}  # substitutions that earlier imports found
        self.frames = [Frame()]
        self.defined_symbols: set[Symbol] = set()
        self.user_bounds: dict[str, Symbol] = {}  # symbols by name
        self.may_be_empty: AbstractSet[Symbol] = frozenset()  # input symbols whose lower bound 0 is a default
        self.patterns: dict[tuple[str, int], Any] = {}  # of states of loops, by the node's name and how many there are
        self._names = {"main"}
        self._symbols: set[str] = set()
        self._varying: set[Symbol] = set()
        self._states: set[Symbol] = set()
        self._given: set[Symbol] = set()  # that inputs, definitions and results give
        self._carriers: dict[Symbol, Expr] = {}  # tensors that have them as an extent
        self._borders: dict[Expr, Frame] = {}  # expressions that other frames capture: whose they are
        self._noted: Noted = {}
        self._elements: dict[str, tuple[Any, ...]] = {}  # shapes of the tensors in inputs that are sequences

    @property
    def frame(self) -> Frame:
        """The function whose body is being imported."""
        return self.frames[-1]

    # Symbols

    def symbol(self, name: str, low: int = 0, high: int = LARGEST) -> Symbol:
        """Return a new symbol whose name begins as `name` does."""
        cost.spend("steps", _SYMBOL_STEPS, name)
        # "input_0", "input_1", ...: a loop over taken names would be long where there are thousands of one name
        chosen = base = identifier(name)
        if base in self._symbols:
            chosen = unique_name(f"{base}_{len(self._symbols)}", self._symbols)
        self._symbols.add(chosen)
        return Symbol(chosen, min(low, LARGEST), min(high, LARGEST))  # bounds of products may be larger

    def take(self, symbol: Symbol) -> None:
        """Note that a symbol of the user's is in use."""
        self._symbols.add(symbol.name)

    def give(self, params: Iterable[Var]) -> None:
        """Note that symbols are extents of parameters."""
        for param in params:
            for extent in extents_of(param.type):
                if isinstance(extent, Dim):
                    self._given.update(extent.symbols)
                    if extent.symbol is not None:
                        self._carriers.setdefault(extent.symbol, param)

    def defined(self, value: Expr, name: str, low: int = 0, high: int = LARGEST) -> Any:
        """Return the extent that an integer of one element is: a new symbol, unless the integer is known."""
        if low == high:
            return low
        known = self.known(value)
        if known is not None:
            return known.reshape(-1)[0]
        if id(value) in self.frame.known:
            return self.frame.known[id(value)][1]
        symbol = self.symbol(name, low, max(low, high))
        narrower = self.replaced.get(symbol)
        if isinstance(narrower, Dim) and narrower.symbol is not None:
            symbol = narrower.symbol
        self.defined_symbols.add(symbol)
        number = value
        if ir.tensor_type(value).dtype != "int64":
            number = ir.call("cast", [number], dtype="int64", span=value.span)
        if ir.tensor_type(value).shape:
            number = ir.call("reshape", [number], newshape=(), span=value.span)
        self.frame.defines[symbol] = number
        self._given.add(symbol)
        self.frame.known[id(value)] = value, symbol.dim  # keeping the expression keeps its id its own
        return symbol.dim

    def require(self, flag: Expr, holds: bool, what: str) -> None:
        """Note that a run is refused unless a bool of one element is `holds`; `what` names it for the user."""
        cost.spend("steps", _SYMBOL_STEPS, what)
        number = ir.call("cast", [flag], dtype="int64", span=flag.span)
        if ir.tensor_type(flag).shape:
            number = ir.call("reshape", [number], newshape=(), span=flag.span)
        name = unique_name(what, self._symbols)
        self._symbols.add(name)
        self.frame.required.append((Symbol(name, int(holds), int(holds)), number))

    def state(self, name: str, low: int) -> Any:
        """Return an extent of a loop's state that changes from turn to turn."""
        symbol = self.symbol(name, low)
        self._states.add(symbol)
        return symbol.dim

    def is_state(self, extent: Any) -> bool:
        """Tell whether an extent is one that changes from turn to turn."""
        return isinstance(extent, Dim) and extent.symbol in self._states

    def varying(self, name: str) -> Any:
        """Return an extent in which the elements of a list differ."""
        symbol = self.symbol(name)
        self._varying.add(symbol)
        return symbol.dim

    def is_varying(self, extent: Any) -> bool:
        """Tell whether the elements of a list differ in an extent."""
        return isinstance(extent, Dim) and extent.symbol in self._varying

    def note_elements(self, name: str, shape: tuple[Any, ...]) -> None:
        """Note the shape of the tensors in an input that is a sequence."""
        self._elements[name] = shape

    def elements_of(self, name: str) -> tuple[Any, ...]:
        """Return the shape of the tensors in an input that is a sequence."""
        return self._elements[name]

    def noted(self, expr: Expr, shape: Iterable[Any]) -> None:
        """Note that symbols in the shape of a tensor which nothing else gives are read from it."""
        for axis, extent in enumerate(shape):
            symbol = extent.symbol if isinstance(extent, Dim) else None
            if symbol is not None and symbol not in self._given:
                self._given.add(symbol)
                self.frame.sources[symbol] = expr, axis

    def moved(self, renamed: Mapping[Expr, Expr]) -> None:
        """Note that expressions have others in their place, which know the names of their tensors."""
        for symbol, (expr, axis) in list(self.frame.sources.items())[-64:]:
            if renamed.get(expr, expr) is not expr:
                self.frame.sources[symbol] = renamed[expr], axis
        for expr, other in renamed.items():
            if id(expr) in self._noted:
                self._noted[id(other)] = other, self._noted[id(expr)][1]

    def nonempty(self, extents: Iterable[Any]) -> dict[Symbol, Extent]:
        """Return symbols whose lower bound 0 is a default, with the lower bound 1."""
        found = [symbol for symbol in symbols_of(extents) if symbol in self.may_be_empty]
        return {symbol: Symbol(symbol.name, 1, symbol.high).dim for symbol in found}

    def exclude_empty(self, extents: Iterable[Any], decides: Callable[[Mapping[Symbol, Extent]], bool]) -> None:
        """Raise SameExtents if the lower bound 1 in place of 0 decides a comparison."""
        found = self.nonempty(extents)
        for narrower in [*({symbol: dim} for symbol, dim in found.items()), found]:
            if narrower and decides(narrower):
                raise SameExtents(narrower)

    def exclude_empty_operands(self, expr: Expr) -> None:
        """Raise SameExtents if the lower bound 1 in place of 0 decides the result of a call on dimension sizes."""
        arrays = symbolic_operands(expr, self._noted) if self.may_be_empty and isinstance(expr, Call) else None
        if arrays is not None and isinstance(expr, Call) and self.known(expr) is None:
            items = [item for array in arrays for item in array.reshape(-1)]
            extents = [item.extent if isinstance(item, Quotient) else item for item in items]
            self.exclude_empty(extents, lambda values: elements(expr, self._noted, values) is not None)

    # Tensors of dimension sizes

    def known(self, expr: Expr) -> Array | None:
        """Return the elements of a tensor that are known or symbolic; None for other tensors."""
        return known(expr, self._noted)

    def folded(self, call: Call) -> Expr:
        """Return the result of a call on symbolic dimension sizes; the call where it is computed at run time."""
        return folded(call, self._noted)

    # Functions

    def name(self, base: str) -> str:
        """Return a name for a function."""
        found = unique_name(identifier(base), self._names)
        self._names.add(found)
        return found

    @contextmanager
    def function(self) -> Iterator[Frame]:
        """Import the body of a function inside."""
        self.frames.append(Frame())
        try:
            yield self.frame
        finally:
            self.frames.pop()

    def needs(self, frame: Frame, params: Sequence[Var], results: Sequence[Expr], outer: AbstractSet[Expr]) -> Needs:
        """Return what a body takes from around it; `outer` are expressions of other frames."""
        found = Needs([], [], [*frame.required])
        own = set(params)
        seen: set[Expr] = set()
        mentioned: dict[Symbol, None] = {}
        defined = {symbol for symbol, _ in frame.required}

        def is_around(expr: Expr) -> bool:
            return isinstance(expr, Var) or expr in outer or self._borders.get(expr, frame) is not frame

        roots = [*results, *(number for _, number in frame.required)]
        while roots:
            for expr in _walk(roots, seen, is_around):
                mentioned.update(dict.fromkeys(mentions(expr)))
                if expr not in own and is_around(expr):
                    found.captured.append(expr)
            roots = []
            for symbol in list(mentioned):
                if symbol in defined:
                    continue
                if symbol in frame.defines:
                    defined.add(symbol)
                    found.defines.append((symbol, frame.defines[symbol]))
                elif symbol in frame.sources and frame.sources[symbol][0] not in seen:
                    defined.add(symbol)
                    expr, axis = frame.sources[symbol]
                    found.defines.append((symbol, ir.call("extent_of", [expr], axis=axis, span=expr.span)))
                else:
                    continue
                roots.append(found.defines[-1][1])
        known = defined | set(frame.sources) | self._varying
        found.symbols = [symbol for symbol in mentioned if symbol not in known]
        return found

    def completed(self, all_needs: Sequence[Needs], params: Sequence[Expr] = ()) -> list[Expr]:
        """Return what functions capture that have these needs: with a tensor for each symbol that has no other."""
        captured = dict.fromkeys(expr for needs in all_needs for expr in needs.captured)
        for symbol in dict.fromkeys(symbol for needs in all_needs for symbol in needs.symbols):
            bare = {
                item.symbol for expr in (*params, *captured) for item in extents_of(expr.type) if isinstance(item, Dim)
            }
            if symbol not in bare:
                captured[self._carrier(symbol)] = None
        return list(captured)

    def _carrier(self, symbol: Symbol) -> Expr:
        """Return a tensor that has a symbol as an extent."""
        if symbol not in self._carriers:
            for frame in self.frames:
                if symbol in frame.sources:
                    self._carriers[symbol] = frame.sources[symbol][0]
                elif symbol in frame.defines or symbol in self._given:
                    self._carriers[symbol] = ir.call("zeros", [], shape=(symbol.dim,), dtype="bool")
                else:
                    continue
                self._borders[self._carriers[symbol]] = frame
        return self._carriers[symbol]

    def close(self, name: str, params: Sequence[Var], results: Sequence[Expr], captured: Sequence[Expr],
              defines: Sequence[tuple[Symbol, Expr]] = ()) -> GlobalVar:  # fmt: skip
        """Make a function of a body, which takes what it captures behind its parameters."""
        names = {param.name for param in params}
        given = list(params)
        replaced: dict[Expr, Expr] = {}
        for expr in captured:
            assert isinstance(expr.type, (TensorType, ListType))
            title = unique_name(expr.name if isinstance(expr, Var) else expr.span.tensor or "captured", names)
            names.add(title)
            given.append(Var(title, expr.type))
            replaced[expr] = given[-1]
        rebuilt = _rebuilt([*results, *(expr for _, expr in defines)], replaced)
        body = rebuilt[0] if len(rebuilt) == 1 else Tuple(tuple(rebuilt))
        attrs = {"defines": tuple(symbol for symbol, _ in defines)} if defines else {}
        function = Function(tuple(given), body, attrs)
        self.functions[name] = function
        return GlobalVar(name, function.type)


def result_type(kinds: Sequence[Type]) -> Type:
    """Return the type of a function that gives several results, or one."""
    return kinds[0] if len(kinds) == 1 else ir.TupleType(tuple(kinds))


def identifier(name: str) -> str:
    """Return a name of letters, digits and underscores."""
    found = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:64]
    return found if found and not found[0].isdigit() else f"d_{found}".rstrip("_")


def mentions(expr: Expr) -> list[Symbol]:
    """Return the symbols in the type and the attributes of an expression."""
    kinds = [] if isinstance(expr, (GlobalVar, Function)) else list(extents_of(expr.type))
    values = list(_flat(expr.attrs.values())) if isinstance(expr, Call) else []
    return symbols_of([*kinds, *values])


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _walk(roots: Sequence[Expr], seen: set[Expr], ends: Callable[[Expr], bool]) -> list[Expr]:
    """Return what roots depend on and was not seen before, arguments first; a walk goes no further where it ends."""
    order: list[Expr] = []
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(() if ends(root) else children(root)))]
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if child not in seen:
                    seen.add(child)
                    stack.append((child, iter(() if ends(child) else children(child))))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def _rebuilt(roots: Sequence[Expr], replaced: Mapping[Expr, Expr]) -> list[Expr]:
    """Return expressions that read others in the place of some."""
    done = dict(replaced)
    for expr in _walk(roots, set(), lambda expr: expr in replaced):
        if expr not in done:
            done[expr] = with_children(expr, (done[child] for child in children(expr)))
    return [done[root] for root in roots]
