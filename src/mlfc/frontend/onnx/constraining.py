"""Constraint solving for symbols: values that make dimension sizes compatible, and their substitution in an import."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import chain
from math import gcd
from typing import Any

from mlfc.errors import MlfcError
from mlfc.frontend.dynamic import Constrained, mentions
from mlfc.frontend.onnx.bodies import Bodies, Scope, StandIns
from mlfc.frontend.onnx.inputs import NodeProto
from mlfc.frontend.onnx.node import Node
from mlfc.ops.rules import NotMultipleError, TooSmallError, UnequalDimsError
from mlfc.relay.dynamic import unproven_extents
from mlfc.relay.ir import Call, Expr, Function, If, Tuple, Var
from mlfc.relay.visitor import post_order
from mlfc.support.cost import undone
from mlfc.support.dims import Dim, Extent, Symbol, UndecidedError, bounds, factors_of, maximum, minimum, substituted

_MULTIPLES = (2, 4, 8, 16, 32, 64, 128)
_BY = "_by_"


def making_equal(a: Extent, b: Extent, own: AbstractSet[Symbol]) -> dict[Symbol, Extent] | None:
    """Return values of input symbols that make two dimension sizes equal; None if none are found."""
    difference = a - b
    if not isinstance(difference, Dim):
        return None
    for extent, other in ((a, b), (b, a)):
        symbol = extent.symbol if isinstance(extent, Dim) else None
        limited = None if symbol is None or symbol not in own else _limited(symbol, other)
        if limited is not None:
            return limited
    # dividing by common factors, symbols or numbers, does not change the solutions
    for symbol in sorted(difference.symbols):
        while isinstance(difference, Dim) and difference % symbol.dim == 0:
            difference = difference // symbol.dim
    if isinstance(difference, Dim):
        difference = difference // gcd(*(count for _, count in difference.terms))
    if not isinstance(difference, Dim):
        return None
    rests = [
        (symbol, symbol.dim - sign * difference) for symbol in sorted(difference.symbols & own) for sign in (1, -1)
    ]
    rests = [(symbol, rest) for symbol, rest in rests if not isinstance(rest, Dim) or symbol not in rest.symbols]
    # prefer a sum to a difference, which may be negative
    rests.sort(key=lambda found: bounds(found[1])[0] < found[0].low)
    if not rests:
        return _making_none(a, b, own)
    symbol, rest = rests[0]
    low, high = bounds(rest)
    if low > symbol.high or high < symbol.low:
        return None
    equal = rest.symbol if isinstance(rest, Dim) else None
    if equal is not None:
        # use one symbol with the bounds of both, and the name that sorts first
        first, second = sorted((symbol, equal))
        both = Symbol(first.name, max(first.low, second.low), min(first.high, second.high))
        return {first: both.dim, second: both.dim} if both != first else {second: both.dim}
    return None if isinstance(rest, Dim) and not rest.symbols <= own else {symbol: rest}


def making_least(extent: Extent, least: int, own: AbstractSet[Symbol]) -> dict[Symbol, Extent] | None:
    """Return the input symbol narrowed so that a dimension size is at least `least`; None if that is impossible."""
    symbol = _only_symbol(extent, own)
    if symbol is None:
        return None
    found = _from_where_on(symbol, partial(_reaches, extent, symbol, least))
    return None if found is None else _if_it_holds(symbol, found, symbol.high, lambda given: given(extent) >= least)


def fitting_length(
    node: Node, declared: Sequence[int | str] | None, own: AbstractSet[Symbol]
) -> dict[Symbol, Extent] | None:
    """Return the length of a list of dynamic length that determines a shape, derived from the ranks of tensors."""
    index = {"ConstantOfShape": 0, "Resize": 3}.get(node.operator, 1)
    shape = node.shape(index) if node.has(index) else ()
    if len(shape) != 1 or not isinstance(shape[0], Dim) or node.given("axes") or node.has(3) != (index == 3):
        return None
    rank, others = node.rank(0), None if declared is None else len(declared)
    lengths = {
        **dict.fromkeys(("Reshape", "Expand", "ConstantOfShape"), others),
        **dict.fromkeys(("Squeeze", "Unsqueeze"), None if others is None else abs(rank - others)),
        "Tile": rank, "Resize": rank, "Pad": 2 * rank, "Split": len(node.outputs),
    }  # fmt: skip
    length = lengths.get(node.operator)
    return making_equal(shape[0], length, own) if length else None


def fitting_windows(
    results: Sequence[Expr], own: AbstractSet[Symbol], functions: Mapping[str, Function]
) -> dict[Symbol, Extent]:
    """Return input symbols narrowed so that the windows of convolutions and pools fit into their data.

    For the two branches of an If, the wider bounds count: it is unknown which one runs, and the other may need less.
    Loop bodies do not count, because a loop may run zero iterations.
    """
    found: dict[Symbol, Extent] = {}
    for node in post_order(Tuple(tuple(results))):
        narrower: list[Mapping[Symbol, Extent]] = []
        if isinstance(node, Call):
            narrower = [making_least(extent, least, own) or {} for extent, least in unproven_extents(node).items()]
        elif isinstance(node, If):
            bodies = (functions[branch.name].body for branch in (node.then, node.otherwise))
            then, other = (fitting_windows([body], own, functions) for body in bodies)
            for symbol in then.keys() & other:
                lows, highs = zip(bounds(then[symbol]), bounds(other[symbol]), strict=True)
                narrower.append({symbol: Symbol(symbol.name, min(lows), max(highs)).dim})
        for symbol, narrow in chain.from_iterable(item.items() for item in narrower):
            (low, high), (least, most) = bounds(narrow), bounds(found.get(symbol, symbol.dim))
            found[symbol] = Symbol(symbol.name, max(low, least), min(high, most)).dim
    return found


def _making_none(a: Extent, b: Extent, own: AbstractSet[Symbol]) -> dict[Symbol, Extent] | None:
    """Return a symbol narrowed so that a factor of the difference of two sizes is 0, as a quotient may be."""
    for factor in factors_of(a - b):
        symbol = _only_symbol(factor, own)
        if symbol is None:
            continue
        for sign in (1, -1):
            first, behind = (_from_where_on(symbol, partial(_reaches, sign * factor, symbol, end)) for end in (0, 1))
            if first is None:
                continue
            last = symbol.high if behind is None else behind - 1
            found = _if_it_holds(symbol, first, last, lambda given: given(a) == given(b) and bounds(given(a))[1] > 0)
            if found is not None:
                return found
    return None


def _only_symbol(extent: Extent, own: AbstractSet[Symbol]) -> Symbol | None:
    """Return the symbol of an expression that contains exactly one, if `own` contains it; None otherwise."""
    symbols = extent.symbols if isinstance(extent, Dim) else frozenset()
    return next(iter(symbols)) if len(symbols) == 1 and symbols <= own else None


def _reaches(extent: Extent, symbol: Symbol, least: int, value: int) -> bool:
    try:
        return bool(substituted(extent, {symbol: value}) >= least)
    except ZeroDivisionError:
        return False


def _from_where_on(symbol: Symbol, holds: Callable[[int], bool]) -> int | None:
    """Return the least value of a symbol from which on a monotonic predicate is true; None if it never is."""
    if not holds(symbol.high):
        return None
    return symbol.low + bisect_left(range(symbol.low, symbol.high), True, key=holds)


def _if_it_holds(
    symbol: Symbol, low: int, high: int, holds: Callable[[Callable[[Extent], Any]], bool]
) -> dict[Symbol, Extent] | None:
    """Return a symbol with new bounds if a condition is true in all of them; the search only assumes monotonicity."""
    if not symbol.low <= low <= high <= symbol.high or (low, high) == (symbol.low, symbol.high):
        return None
    found: dict[Symbol, Extent] = {symbol: low if low == high else Symbol(symbol.name, low, high).dim}
    try:
        return found if holds(lambda extent: substituted(extent, found)) else None
    except (UndecidedError, ZeroDivisionError):
        return None


def making_multiples(
    a: Extent, b: Extent, own: AbstractSet[Symbol], by: Extent | None = None
) -> dict[Symbol, Extent] | None:
    """Return multiples of new symbols for input symbols that make two dimension sizes equal.

    Each symbol is tried alone before all symbols together. `by` is an additional factor to try, besides powers of 2.
    """
    difference: Any = a - b
    symbols = sorted(difference.symbols & own) if isinstance(difference, Dim) else []
    likely = (by,) if isinstance(by, int) and by not in _MULTIPLES else ()
    for count in (*_MULTIPLES, *likely):
        for chosen in [*([symbol] for symbol in symbols), symbols]:
            found = {symbol: _multiple(symbol, count, own) for symbol in chosen}
            if found and None not in found.values() and substituted(a, found) == substituted(b, found):
                return found
    return None


def _multiple(symbol: Symbol, count: int, own: AbstractSet[Symbol]) -> Any:
    """Return `count` times a new symbol named after the factor; None if the bounds exclude that."""
    name, by, before = symbol.name.rpartition(_BY)
    if not (by and before.isdigit()):
        name, before = symbol.name, "1"
    total = int(before) * count
    low, high = -(-symbol.low // count), symbol.high // count
    if low > high or total > max(_MULTIPLES):
        return None
    title = f"{name}{_BY}{total}"
    while any(other.name == title for other in own):
        title += "_"
    return count * Symbol(title, low, high).dim


def _limited(symbol: Symbol, other: Extent) -> dict[Symbol, Extent] | None:
    """Return a symbol narrowed so that it equals its own minimum or maximum with a number."""
    for chosen, low, high in ((minimum, symbol.low, None), (maximum, None, symbol.high)):
        for limit in bounds(other):
            found = Symbol(symbol.name, limit if low is None else low, limit if high is None else high)
            if found.low <= found.high and found != symbol and chosen(symbol.dim, limit) == other:
                return {symbol: found.low if found.low == found.high else found.dim}
    return None


CONSTRAINT_LIMIT = 128  # each constraint substitutes values in everything imported so far


class Constraining(Bodies):
    """An import whose nodes may constrain symbols of the inputs."""

    scope: Scope | None = None  # of the main graph
    inputs: Mapping[str, Var] = {}
    input_symbols: frozenset[Symbol] = frozenset()
    constraints = 0  # number of substitutions so far

    @abstractmethod
    def _imported(self, item: NodeProto, scope: Scope) -> None:
        """Import a node; raise `Constrained` if it constrains symbols."""

    def set_inputs(self, inputs: Mapping[str, Var]) -> None:
        """Set the inputs of the model and the symbols that may be constrained."""
        self.inputs = inputs
        self.input_symbols = frozenset(symbol for var in inputs.values() for symbol in mentions(var))
        if self.dynamic is not None:
            self.dynamic.give(inputs.values())

    def fit_windows(self, outputs: Sequence[str], scope: Scope) -> None:
        """Narrow input symbols so that windows fit into their data."""
        while self.dynamic is not None and self.may_restart and self.constraints < CONSTRAINT_LIMIT:
            results = [value for output in outputs if (value := scope.values[output]) is not None]
            found = fitting_windows(results, self.input_symbols, self.dynamic.functions)
            if not found:
                break
            self._constrain(found, scope)

    def _constrain(self, found: Mapping[Symbol, Extent], scope: Scope) -> None:
        """Substitute values for symbols in everything imported so far."""
        assert self.dynamic is not None
        self.constraints += 1
        changed = self.dynamic.substitute(found)
        for name, value in scope.values.items():
            scope.values[name] = None if value is None else changed(value)
        self.noted |= {changed(expr): quantization for expr, quantization in self.noted.items()}
        self.stand_ins.update([changed(expr) for expr in self.stand_ins])
        self.set_inputs({name: changed(var) for name, var in self.inputs.items()})  # type: ignore[misc]  # variables

    def _node(self, item: NodeProto, scope: Scope) -> None:
        """Import a node; if it constrains symbols, substitute their values and import it again."""
        while self.dynamic is not None and self.may_restart and scope is self.scope:
            problems, census, draws = len(self.problems), replace(self.census), self.runs.readers
            mark, stand_ins = self.dynamic.mark(), StandIns(self.stand_ins)
            try:
                with undone(Constrained):
                    self._imported(item, scope)
                if len(self.problems) == problems:
                    return
                # with a lower bound of 1 instead of the default 0, the import may succeed
                found = self.dynamic.nonempty(symbol.dim for symbol in self.dynamic.may_be_empty)
            except Constrained as constraint:
                found = dict(constraint.found)
            if not found:
                return
            if len(self.problems) > problems:
                self.problems.taken_back(problems)
            self.census.nodes, self.census.refused = census.nodes, census.refused
            self.census.unchecked = census.unchecked
            self.runs.readers, self.stand_ins = draws, stand_ins
            self.dynamic.undo(mark)
            for tensor in item.proto.output:
                scope.values.pop(tensor, None)
            if self.constraints < CONSTRAINT_LIMIT:
                self._constrain(found, scope)
            else:  # limit reached: report the node's problem
                self.may_restart, self.dynamic.may_be_empty = False, frozenset()
        self._imported(item, scope)

    def restart(self, problem: MlfcError) -> None:
        """Raise Constrained if a problem is solved by equal, multiple or larger dimension sizes of inputs."""
        if not self.may_restart:
            return
        found = None
        if isinstance(problem, UnequalDimsError):
            if self.dynamic is not None:
                # a lower bound may change the form of an expression; the names of symbols stay
                extents = problem.extents
                self.dynamic.exclude_empty(
                    extents, lambda found: any(str(substituted(each, found)) != str(each) for each in extents)
                )
            difference: Any = problem.extents[0] - problem.extents[1]
            if isinstance(difference, Dim) and not difference.symbols <= self.input_symbols:
                return
            found = making_equal(*problem.extents, self.input_symbols)
            if found is None:
                by = problem.by if isinstance(problem, NotMultipleError) else None
                found = making_multiples(*problem.extents, self.input_symbols, by)
        elif isinstance(problem, TooSmallError):
            # bounds of symbols that nodes define are also checked at run time
            defined = frozenset(self.dynamic.defined_symbols if self.dynamic is not None else ())
            found = making_least(problem.extent, problem.least, self.input_symbols | defined)
        if found is not None:
            raise Constrained(found) from problem
        self.choices.misfit(problem)
