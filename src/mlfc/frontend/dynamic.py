"""Symbols with runtime values, and functions other than ``main``. Each function is a `Frame` during its import.

A symbol belongs to the frame that defines it. Another function receives its value from the shape of an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mlfc.frontend import common
from mlfc.frontend.common import unique_name
from mlfc.frontend.symbolic import Array, Noted, Quotient, elements, folded, known, symbolic_operands
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, GlobalVar, ListType, TensorType, Tuple, Type, Var
from mlfc.relay.visitor import Substitution, children, post_order, with_children
from mlfc.support import cost
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, bounds, dims_in, substituted, symbols_of

# an optional without a value; no other expression has its type
NOTHING = Tuple((Tuple(()),))
_SYMBOL_STEPS = 1 << 10


@dataclass(eq=False)
class Frame:
    """A function whose body is being imported."""

    defines: dict[Symbol, Expr] = field(default_factory=dict)  # symbols, and the integers that define them
    # symbols that are dimensions of the results of an `If`, a call or a list: the result and the axis
    sources: dict[Symbol, tuple[Expr, int]] = field(default_factory=dict)
    known: dict[int, tuple[Expr, Any]] = field(default_factory=dict)  # dimension sizes by the integer that defines them
    scaled: dict[tuple[Any, float], Any] = field(default_factory=dict)  # dimension sizes times numbers, rounded down
    # conditions checked at run time: symbols whose bounds admit one value
    required: list[tuple[Symbol, Expr]] = field(default_factory=list)


@dataclass
class Needs:
    """Values and symbols that a body reads from enclosing functions."""

    captured: list[Expr]
    symbols: list[Symbol]  # of other frames
    defines: list[tuple[Symbol, Expr]]  # symbols that the body defines


class Constrained(Exception):  # noqa: N818  (not an error: the node is imported again)
    """Values of symbols that a node requires. The node is imported again with them substituted."""

    def __init__(self, found: Mapping[Symbol, Extent]) -> None:
        super().__init__(str(found))
        self.found = found


class Dynamic:
    """Symbols and functions of the module under construction."""

    def __init__(self, choose: Callable[[str], bool] = bool, *, mixes: bool = True) -> None:
        self.choose = choose  # chooses the first of two ways to import a node; checked at run time
        self.mixes = mixes  # whether the tensors of a list may differ in rank
        self.functions: dict[str, Function] = {}
        self.frames = [Frame()]
        self.defined_symbols: dict[Symbol, None] = {}
        self.user_bounds: dict[str, Symbol] = {}  # symbols by name
        self.may_be_empty: AbstractSet[Symbol] = frozenset()  # input symbols with the default lower bound 0
        self.patterns: dict[tuple[str, int], Any] = {}  # types of loop states, by node name and number of states
        self._names: dict[str, None] = {"main": None}
        self._symbols: dict[str, None] = {}
        self._varying: dict[Symbol, None] = {}
        self._states: dict[Symbol, None] = {}
        self._given: dict[Symbol, None] = {}  # defined by inputs, definitions and results
        self._carriers: dict[Symbol, Expr] = {}  # tensors that have the symbol as a dimension
        self._borders: dict[Expr, Frame] = {}  # captured expressions, and the frames that own them
        self._noted: Noted = {}
        self.element_shapes: dict[str, tuple[Any, ...]] = {}  # of the elements of inputs that are sequences

    @property
    def frame(self) -> Frame:
        """The function whose body is being imported."""
        return self.frames[-1]

    # Symbols

    def symbol(self, name: str, low: int = 0, high: int = LARGEST) -> Symbol:
        """Return a new symbol whose name starts with `name`."""
        cost.spend("steps", _SYMBOL_STEPS, name)
        # suffix "_<number of symbols>": trying _1, _2, ... would be quadratic for thousands of symbols of one name
        chosen = base = identifier(name)
        if base in self._symbols:
            chosen = unique_name(f"{base}_{len(self._symbols)}", self._symbols)
        self._symbols[chosen] = None
        return Symbol(chosen, min(low, LARGEST), min(high, LARGEST))  # bounds of products may exceed LARGEST

    def take(self, symbol: Symbol) -> None:
        """Mark the name of a user's symbol as taken."""
        self._symbols[symbol.name] = None

    def give(self, params: Iterable[Var]) -> None:
        """Record the symbols in the shapes of parameters as defined by these."""
        for param in params:
            for extent in ir.extents_of([param.type]):
                if isinstance(extent, Dim):
                    self._given.update(dict.fromkeys(extent.symbols))
                    if extent.symbol is not None:
                        self._carriers.setdefault(extent.symbol, param)

    def defined(self, value: Expr, name: str, low: int = 0, high: int = LARGEST) -> Any:
        """Return a one-element integer tensor as a dimension size: its value if known, else a new symbol."""
        if low == high:
            return low
        known = self.known(value)
        if known is not None:
            return known.reshape(-1)[0]
        if id(value) in self.frame.known:
            return self.frame.known[id(value)][1]
        symbol = self.symbol(name, low, max(low, high))
        self.defined_symbols[symbol] = None
        self.frame.defines[symbol] = _scalar(value)
        self._given[symbol] = None
        self.frame.known[id(value)] = value, symbol.dim  # stored with its expression, so that the id is not reused
        return symbol.dim

    def require(self, flag: Expr, holds: bool, what: str) -> None:
        """Require a one-element bool tensor to equal `holds` at run time; `what` names the condition for the user."""
        cost.spend("steps", _SYMBOL_STEPS, what)
        name = unique_name(what, self._symbols)
        self._symbols[name] = None
        self.frame.required.append((Symbol(name, int(holds), int(holds)), _scalar(flag)))

    def state(self, name: str, low: int) -> Any:
        """Return a dimension size of a loop state that changes between iterations."""
        symbol = self.symbol(name, low)
        self._states[symbol] = None
        return symbol.dim

    def is_state(self, extent: Any) -> bool:
        """Return whether a dimension size changes between iterations."""
        return isinstance(extent, Dim) and extent.symbol in self._states

    def varying(self, name: str) -> Any:
        """Return a dimension size that differs between the elements of a list."""
        symbol = self.symbol(name)
        self._varying[symbol] = None
        return symbol.dim

    def is_varying(self, extent: Any) -> bool:
        """Return whether a dimension size differs between the elements of a list."""
        return isinstance(extent, Dim) and extent.symbol in self._varying

    def noted(self, expr: Expr, shape: Iterable[Any]) -> None:
        """Record that undefined symbols in the shape of a tensor are read from it."""
        for axis, extent in enumerate(shape):
            symbol = extent.symbol if isinstance(extent, Dim) else None
            if symbol is not None and symbol not in self._given:
                self._given[symbol] = None
                self.frame.sources[symbol] = expr, axis

    def moved(self, renamed: Mapping[Expr, Expr]) -> None:
        """Record that expressions were replaced by equivalent ones that carry tensor names."""
        for symbol, (expr, axis) in list(self.frame.sources.items())[-64:]:
            if renamed.get(expr, expr) is not expr:
                self.frame.sources[symbol] = renamed[expr], axis
        for expr, other in renamed.items():
            if id(expr) in self._noted:
                self._noted[id(other)] = other, self._noted[id(expr)][1]

    def nonempty(self, extents: Iterable[Any]) -> dict[Symbol, Extent]:
        """Return the symbols with the default lower bound 0, with a lower bound of 1 instead."""
        found = [symbol for symbol in symbols_of(extents) if symbol in self.may_be_empty]
        return {symbol: Symbol(symbol.name, 1, symbol.high).dim for symbol in found}

    def exclude_empty(self, extents: Iterable[Any], decides: Callable[[Mapping[Symbol, Extent]], bool]) -> None:
        """Raise Constrained if a lower bound of 1 instead of 0 decides a comparison."""
        found = self.nonempty(extents)
        for narrower in [*({symbol: dim} for symbol, dim in found.items()), found]:
            if narrower and decides(narrower):
                raise Constrained(narrower)

    def exclude_empty_operands(self, expr: Expr) -> None:
        """Raise Constrained if a lower bound of 1 instead of 0 determines the result of a call on dimension sizes."""
        if not self.may_be_empty or not isinstance(expr, Call) or self.known(expr) is not None:
            return
        items = [item for array in symbolic_operands(expr, self._noted) or () for item in array.reshape(-1)]
        extents = [item.extent if isinstance(item, Quotient) else item for item in items]
        self.exclude_empty(extents, lambda values: elements(expr, self._noted, values) is not None)

    # Constraints

    def mark(self) -> list[int]:
        """Return a checkpoint of the state of the main function, for `undo`."""
        return [len(part) for part in self._parts()]

    def undo(self, mark: list[int]) -> None:
        """Discard everything that was added since a checkpoint."""
        for part, count in zip(self._parts(), mark, strict=True):
            if isinstance(part, list):
                del part[count:]
            else:
                for key in list(part)[count:]:
                    del part[key]

    def _parts(self) -> list[list[Any] | dict[Any, Any]]:
        frame = self.frames[0]
        return [
            self.functions, self.patterns, self.defined_symbols, self._names, self._symbols, self._varying,
            self._states, self._given, self._carriers, self._borders, self._noted, self.element_shapes,
            frame.defines, frame.sources, frame.known, frame.scaled, frame.required,
        ]  # fmt: skip

    def substitute(self, values: Mapping[Symbol, Extent]) -> Substitution:
        """Substitute values for symbols of the main function, and return the substitution for use on other expressions.

        Other functions only have symbols replaced that become numbers or other symbols: their remaining symbols are
        parameters of their types. A defined symbol that becomes a number is required to equal it at run time.
        """
        plain = {symbol: value for symbol, value in values.items() if isinstance(value, int) or value.symbol}
        self.functions = {name: Substitution(plain).function(body) for name, body in self.functions.items()}
        changed = Substitution(values, plain, self._simplified)
        frame = self.frames[0]
        for symbol in symbols_of(values.values()):
            self.take(symbol)
            self._given[symbol] = None
        for symbol, number in list(frame.defines.items()):
            value = values.get(symbol, symbol.dim)
            del frame.defines[symbol]
            if isinstance(value, int):
                frame.required.append((Symbol(symbol.name, value, value), number))
            elif value.symbol is not None:
                frame.defines[value.symbol] = number
        frame.defines = {symbol: changed(number) for symbol, number in frame.defines.items()}
        frame.required = [
            (symbol, number)
            for symbol, number in ((symbol, changed(number)) for symbol, number in frame.required)
            if not isinstance(number, Constant) or int(number.data) != symbol.low
        ]
        frame.sources = {symbol: (changed(expr), axis) for symbol, (expr, axis) in frame.sources.items()}
        known = [(changed(expr), substituted(dim, values)) for expr, dim in frame.known.values()]
        frame.known = {id(expr): (expr, dim) for expr, dim in known}
        frame.scaled = {
            (substituted(size, values), scale): substituted(product, values)
            for (size, scale), product in frame.scaled.items()
        }
        self._carriers = {symbol: changed(expr) for symbol, expr in self._carriers.items() if symbol not in values}
        self.element_shapes = {
            name: tuple(substituted(size, values) for size in shape) for name, shape in self.element_shapes.items()
        }
        self.may_be_empty = self.may_be_empty - values.keys()
        self._borders = {changed(expr): border for expr, border in self._borders.items()}
        return changed

    def _simplified(self, call: Call) -> Expr:
        """Simplify a call after substitution."""
        found = _all_of(call)
        found = self.folded(found) if isinstance(found, Call) else found
        return common.folded(found) if isinstance(found, Call) else found

    # Tensors of dimension sizes

    def known(self, expr: Expr) -> Array | None:
        """Return the elements of a tensor if they are known or symbolic, else None."""
        return known(expr, self._noted)

    def folded(self, call: Call) -> Expr:
        """Return the result of a call on symbolic dimension sizes, or the call if it must be computed at run time."""
        return folded(call, self._noted)

    # Functions

    def name(self, base: str) -> str:
        """Return an unused name for a function."""
        found = unique_name(identifier(base), self._names)
        self._names[found] = None
        return found

    @contextmanager
    def function(self) -> Iterator[Frame]:
        """Open a frame, in which the body of a function is imported."""
        self.frames.append(Frame())
        try:
            yield self.frame
        finally:
            self.frames.pop()

    def needs(self, frame: Frame, params: Sequence[Var], results: Sequence[Expr], outer: AbstractSet[Expr]) -> Needs:
        """Return the values and symbols that a body reads from other frames; `outer` are expressions of these."""
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
        known = defined | set(frame.sources) | set(self._varying)
        found.symbols = [symbol for symbol in mentioned if symbol not in known]
        return found

    def completed(self, all_needs: Sequence[Needs], params: Sequence[Expr] = ()) -> list[Expr]:
        """Return the values that functions with these needs capture, including carrier tensors for symbols."""
        captured = dict.fromkeys(expr for needs in all_needs for expr in needs.captured)
        for symbol in dict.fromkeys(symbol for needs in all_needs for symbol in needs.symbols):
            extents = ir.extents_of(expr.type for expr in (*params, *captured))
            bare = {item.symbol for item in extents if isinstance(item, Dim)}
            if symbol not in bare:
                captured[self._carrier(symbol)] = None
        return list(captured)

    def _carrier(self, symbol: Symbol) -> Expr:
        """Return a tensor that has a symbol as a dimension."""
        for frame in self.frames if symbol not in self._carriers else ():
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
        """Add a function with captured values as additional parameters after `params`."""
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


def _scalar(value: Expr) -> Expr:
    """Return the only element of a tensor as an int64."""
    number, kind = value, ir.tensor_type(value)
    if kind.dtype != "int64":
        number = ir.call("cast", [number], dtype="int64", span=value.span)
    return ir.call("reshape", [number], newshape=(), span=value.span) if kind.shape else number


def _all_of(call: Call) -> Expr:
    """Return the operand of a take that selects all elements in order, or of a minimum that clips no position."""
    name = ir.op_name(call)
    if name not in ("take", "minimum"):
        return call
    first, second = call.args
    numbers = second if name == "take" else first
    if not isinstance(numbers, Call) or ir.op_name(numbers) != "arange":
        return call
    count = numbers.attrs["stop"]
    if (numbers.attrs["start"], numbers.attrs["step"]) != (0, 1):
        return call
    if name == "take":
        axis = call.attrs["axis"]
        return first if axis is not None and ir.tensor_type(first).shape[axis] == count else call
    limit = known(second)
    is_all = limit is not None and limit.size == 1 and bounds(limit.reshape(-1)[0] - count + 1)[0] >= 0
    return first if is_all else call


def result_type(kinds: Sequence[Type]) -> Type:
    """Return the type of a function with one or several results."""
    return kinds[0] if len(kinds) == 1 else ir.TupleType(tuple(kinds))


def identifier(name: str) -> str:
    """Return a name converted to letters, digits and underscores."""
    found = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:64]
    return found if found and not found[0].isdigit() else f"d_{found}".rstrip("_")


def mentions(expr: Expr) -> list[Symbol]:
    """Return the symbols in the type and the attributes of an expression."""
    kinds = [] if isinstance(expr, (GlobalVar, Function)) else [expr.type]
    values = expr.attrs.values() if isinstance(expr, Call) else ()
    return symbols_of([*ir.extents_of(kinds), *dims_in(values)])


def _walk(roots: Sequence[Expr], seen: set[Expr], ends: Callable[[Expr], bool]) -> list[Expr]:
    """Return unseen dependencies of roots in post-order; the walk does not go beyond those that `ends` accepts."""

    def reads(expr: Expr) -> tuple[Expr, ...]:
        return () if ends(expr) else children(expr)

    return [expr for root in roots if root not in seen for expr in post_order(root, reads, seen)]


def _rebuilt(roots: Sequence[Expr], replaced: Mapping[Expr, Expr]) -> list[Expr]:
    """Return expressions rebuilt with some of their subexpressions replaced."""
    done = dict(replaced)
    for expr in _walk(roots, set(), lambda expr: expr in replaced):
        if expr not in done:
            done[expr] = with_children(expr, (done[child] for child in children(expr)))
    return [done[root] for root in roots]
