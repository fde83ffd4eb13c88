"""Lower functions with control flow to instructions. All calls are inlined.

A tail call of a function to itself, through any branches, becomes a jump: Relay expresses loops this way. Loop
parameters that every iteration passes on unchanged do not become variables. Expressions are lowered after those that
define their symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from mlfc.errors import InternalError, UnsupportedError
from mlfc.relay import ir as relay
from mlfc.relay.dynamic import unproven_extents
from mlfc.relay.op import Kind, Operator, Trait
from mlfc.relay.visitor import called_functions, children, post_order
from mlfc.support.cost import spend
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, dims_in, symbols_of
from mlfc.tir import program as tir_program
from mlfc.tir.program import Assign, Branch, CheckBounds, CheckDimension, Define, Jump, Label, SetSymbols, Value
from mlfc.transform.device_placement import DEFINES
from mlfc.transform.lower_calls import CallBuilder


def defined_symbols(function: relay.Function) -> tuple[Symbol, ...]:
    """Return the symbols whose values are the last fields of a function's body."""
    return tuple(function.attrs.get(DEFINES, ()))


def results_of(function: relay.Function) -> tuple[relay.Expr, ...]:
    """Return the expressions that a function returns."""
    fields = _fields(function)
    return fields[: len(fields) - len(defined_symbols(function))]


@dataclass(frozen=True, eq=False)
class Tail:
    """Continuation of a function: assign its results and jump to `end`, or return them as the model's outputs.

    `loops` are the enclosing loops that this is a tail position of, by function name.
    """

    results: tuple[Value, ...] | None = None
    end: Label | None = None
    loops: Mapping[str, _LoopHead] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _LoopHead:
    label: Label
    params: tuple[Value, ...]
    kinds: tuple[relay.Type, ...]


@dataclass(eq=False)
class _Frame:
    """One inlined function."""

    function: relay.Function
    values: dict[relay.Expr, Value]
    # results of branches and of calls, by the expression
    tuples: dict[relay.Expr, tuple[Value, ...]] = field(default_factory=dict)
    checked: dict[Dim, int] = field(default_factory=dict)  # lower bounds that run-time checks establish


@dataclass(eq=False)
class ControlFlowBuilder(CallBuilder):
    """Lowering of functions with branches, loops, lists and dynamic dimensions."""

    _module: relay.IRModule = field(default_factory=lambda: relay.IRModule({}), init=False)  # of the functions
    _known: set[Symbol] = field(default_factory=set, init=False)
    _entered: list[str] = field(default_factory=list, init=False)
    _labels: int = field(default=0, init=False)

    def _defines(self, value: Value, axis: int, extent: Extent) -> bool:
        """Define the symbol that a dimension consists of, unless it is known; return whether it was defined."""
        symbol = extent.symbol if isinstance(extent, Dim) else None
        if symbol is None or symbol in self._known:
            return False
        self._known.add(symbol)
        self._instructions.append(Define(symbol, value, axis))
        return True

    def _bind_inputs(self, inputs: Sequence[Value]) -> None:
        """Define the symbols of the inputs' dimensions, and check every other dimension."""
        places = [(value, axis, extent) for value in inputs for axis, extent in enumerate(value.shape)]
        waiting = []
        for value, axis, extent in places:
            if not self._defines(value, axis, extent):
                waiting.append(CheckDimension(value, axis, extent))
        for require in waiting:
            multiple = require.extent.multiple if isinstance(require.extent, Dim) else None
            if multiple is not None and multiple[1] not in self._known:
                # defined by division; a later instruction checks that the dimension is a multiple
                count, symbol = multiple
                whole = Symbol(f"{require.source.name}, axis {require.axis}", 0, LARGEST)
                self._instructions.append(Define(whole, require.source, require.axis))
                self._instructions.append(SetSymbols((symbol,), (whole.dim // count,)))
                self._known.add(symbol)
            unknown = [symbol for symbol in symbols_of([require.extent]) if symbol not in self._known]
            if unknown:
                raise UnsupportedError(
                    f"the symbol {unknown[0]} occurs only in the expression {require.extent}, so its value is unknown",
                    place=f"input '{require.source.name}'",
                    next_step=f"Add an input with the plain dimension {unknown[0]}",
                )
        self._instructions += waiting

    # functions

    def _function(self, name: str, args: Sequence[Value], tail: Tail) -> tuple[Value, ...]:
        """Inline a function applied to arguments; return the results if they are the model's outputs."""
        function = self._module.functions[name]
        frame = _Frame(function, dict(zip(function.params, args, strict=True)))
        self._entered.append(name)
        body = function.body
        results: tuple[Value, ...] = ()
        if is_flow(body):
            self._evaluate(frame, (*((body.condition,) if isinstance(body, relay.If) else ()), *body.args))
            results = self._flow(frame, body, tail)
        else:
            self._evaluate(frame, body.fields if isinstance(body, relay.Tuple) else (body,))
            results = tuple(value for item in results_of(function) for value in self._of(frame, item))
            if tail.results is None:
                results = self._returned(results)
            else:
                assert tail.end is not None
                self._assign(tail.results, results)
                self._instructions.append(Jump(tail.end))
        self._entered.pop()
        return results

    def _returned(self, results: Sequence[Value]) -> tuple[Value, ...]:
        """Append the return; copy each output that is an input, a constant or another output."""
        names = self._module.output_names or tuple(f"output{index}" for index in range(len(results)))
        kept = [state.output for state in self._module.states]
        taken: set[Value] = set()
        outputs = []
        # next values of states come last, in the order of the states
        order = {name: number for number, name in enumerate([*(name for name in names if name not in kept), *kept])}
        for name, value in sorted(zip(names, results, strict=True), key=lambda pair: order[pair[0]]):
            owned = value
            if value.root.kind in ("input", "constant") or value.root in taken:
                owned = Value(name, value.shape, value.dtype, "intermediate")
                self._add(self._kernel_call(self._copying(value), [value], owned, ()))
            taken.add(owned.root)
            outputs.append(replace(owned, name=name, kind="output", alias_of=owned, start=0))
        self._instructions.append(tir_program.Return(tuple(outputs)))
        return tuple(outputs)

    def _of(self, frame: _Frame, expr: relay.Expr) -> tuple[Value, ...]:
        return frame.tuples[expr] if expr in frame.tuples else (frame.values[expr],)

    def _evaluate(self, frame: _Frame, wanted: Sequence[relay.Expr]) -> None:
        """Append the instructions of expressions, each after those of its operands and symbols."""
        function = frame.function
        symbols = defined_symbols(function)
        defining = dict(zip(_fields(function)[len(_fields(function)) - len(symbols) :], symbols, strict=True))
        definers: dict[Symbol, relay.Expr] = {symbol: expr for expr, symbol in defining.items()}
        own = set(symbols_of(relay.extents_of([param.type for param in function.params])))
        for expr in {expr: None for root in (*wanted, *defining) for expr in post_order(root)}:
            if is_flow(expr) or is_list_operator(expr):  # its value defines the new symbols of its type
                for symbol in symbols_of(relay.extents_of([expr.type])):
                    # not if an operand of this kind is read to define the symbol
                    if symbol not in own and (symbol not in definers or expr in children(definers[symbol])):
                        definers[symbol] = expr
        for expr, symbol in defining.items():
            if expr in frame.values:  # a parameter
                self._define(symbol, frame.values[expr])
        checks = [expr for expr, symbol in defining.items() if symbol.low == symbol.high]
        for expr in _scheduled((*checks, *wanted), definers, frame.values):
            if expr not in frame.values and expr not in frame.tuples:
                self._expression(frame, expr)
            if expr in defining:
                self._define(defining[expr], frame.values[expr])

    def _define(self, symbol: Symbol, value: Value) -> None:
        if value.kind == "constant":
            number = int(value.array.reshape(-1)[0])
            if not symbol.low <= number <= symbol.high:
                self._instructions.append(CheckBounds(symbol, number))
            self._instructions.append(SetSymbols((symbol,), (number,)))
        else:
            self._instructions.append(Define(symbol, value))
        self._known.add(symbol)

    def _expression(self, frame: _Frame, expr: relay.Expr) -> None:
        if is_flow(expr):
            self._joined(frame, expr)
        elif is_list_operator(expr):
            self._list(frame, expr)
        elif isinstance(expr, relay.TupleGetItem):
            frame.values[expr] = frame.tuples[expr.value][expr.index]
        elif isinstance(expr, relay.Tuple):
            frame.tuples[expr] = tuple(value for item in expr.fields for value in self._of(frame, item))
        else:
            group = expr.op if isinstance(expr, relay.Call) else None
            for call in post_order(group.body) if isinstance(group, relay.Function) else ():
                # dimensions of results must not be negative, and windows must fit into their data
                for extent, least in unproven_extents(call).items() if isinstance(call, relay.Call) else ():
                    if frame.checked.get(extent, -1) < least:
                        frame.checked[extent] = least
                        size = Symbol(f"extent of the result of '{call.span.place or relay.op_name(call)}'", least)
                        self._instructions.append(CheckBounds(size, extent))
            self._values = frame.values
            self._visit(expr, None)

    def _list(self, frame: _Frame, expr: relay.Call) -> None:
        """Append an operator on lists."""
        name = relay.op_name(expr) or ""
        kind = "variable" if relay.has_trait(expr, Trait.AT_POSITION) else "intermediate"
        output = self._variable(expr.type, expr.span, name, kind)
        fresh = tuple(symbol for symbol in symbols_of(output.shape) if symbol not in self._known)
        if output.kind == "list":
            fresh = ()
        inputs = tuple(frame.values[arg] for arg in expr.args)
        items = expr.args[0].type if expr.args else None
        ranks = items.ranks if isinstance(items, relay.ListType) else ()
        self._instructions.append(tir_program.ListOperation(name, inputs, output, fresh, expr.attrs, ranks))
        self._known.update(fresh)
        frame.values[expr] = output

    # branches and calls

    def _joined(self, frame: _Frame, expr: relay.If | relay.Call) -> None:
        """Append branches or a call; their results are variables that every path assigns."""
        kinds = expr.type.fields if isinstance(expr.type, relay.TupleType) else (expr.type,)
        results = tuple(self._variable(kind, expr.span, f"result{index}") for index, kind in enumerate(kinds))
        end = self._label("join")
        self._flow(frame, expr, Tail(results, end))
        self._instructions.append(end)
        frame.tuples[expr] = results
        if not isinstance(expr.type, relay.TupleType):
            frame.values[expr] = results[0]
        for value in results:
            # each tensor of a list has its own dimensions
            for axis, extent in enumerate(() if value.kind == "list" else value.shape):
                self._defines(value, axis, extent)

    def _flow(self, frame: _Frame, expr: relay.If | relay.Call, tail: Tail) -> tuple[Value, ...]:
        """Append branches or a call in the position `tail`."""
        args, kinds = [frame.values[arg] for arg in expr.args], [arg.type for arg in expr.args]
        if isinstance(expr, relay.Call):
            assert isinstance(expr.op, relay.GlobalVar)
            return self._enter(expr.op, args, kinds, tail)
        otherwise = self._label("else")
        self._instructions.append(Branch(frame.values[expr.condition], otherwise))
        known = set(self._known)
        results: tuple[Value, ...] = ()
        for reference in (expr.then, expr.otherwise):
            if reference is expr.otherwise:
                self._instructions.append(otherwise)
            self._known = set(known)
            results = self._enter(reference, args, kinds, tail) or results
        self._known = known
        return results

    def _enter(
        self, reference: relay.GlobalVar, args: Sequence[Value], kinds: Sequence[relay.Type], tail: Tail
    ) -> tuple[Value, ...]:
        name, function = reference.name, self._module.functions[reference.name]
        spend("operators", 1, f"function @{name}")
        params = tuple(param.type for param in function.params)
        head = tail.loops.get(name)
        if head is not None:
            changed = [pair for pair in zip(head.params, args, strict=True) if pair[0] is not pair[1]]
            self._pass(changed, params, kinds)
            self._instructions.append(Jump(head.label))
            return ()
        if name in self._entered:
            raise UnsupportedError(
                f"the function @{name} calls itself other than in tail position",
                place=f"function @{name}",
                next_step="Make the recursive call the last operation of the function: only loops can be compiled",
            )
        if name not in called_functions(self._module, name, tail.loops):
            self._pass((), params, kinds)
            return self._function(name, args, tail)
        kept = _passed_on(self._module, name)
        variables = tuple(
            arg if index in kept else self._variable(kind, function.params[index].span, function.params[index].name)
            for index, (arg, kind) in enumerate(zip(args, params, strict=True))
        )
        changed = [pair for pair in zip(variables, args, strict=True) if pair[0] is not pair[1]]
        self._pass(changed, params, kinds)
        label = self._label(name)
        self._instructions.append(label)
        loops = {**tail.loops, name: _LoopHead(label, variables, params)}
        return self._function(name, variables, replace(tail, loops=loops))

    def _pass(
        self, pairs: Sequence[tuple[Value, Value]], params: Sequence[relay.Type], given: Sequence[relay.Type]
    ) -> None:
        """Assign arguments to variables, then set the symbols of their types, which the arguments may use."""
        found = relay.bound_symbols(params, given)
        if found is None:
            raise InternalError(f"({', '.join(map(str, given))}) do not fit parameters ({', '.join(map(str, params))})")
        changed = {symbol: extent for symbol, extent in found.items() if extent != symbol.dim}
        self._instructions += [CheckBounds(symbol, extent) for symbol, extent in changed.items()]
        if pairs:
            variables, sources = zip(*pairs, strict=True)
            self._assign(variables, sources)
        if changed:
            self._instructions.append(SetSymbols(tuple(changed), tuple(changed.values())))
        self._known.update(found)

    def _assign(self, variables: Sequence[Value], sources: Sequence[Value]) -> None:
        """Assign all variables simultaneously: a source that an earlier pair overwrites is saved first."""
        saved: dict[Value, Value] = {}
        for index, source in enumerate(sources):
            if source.root in variables[: index + 1] and source not in saved:
                kind = "list" if source.kind == "list" else "variable"
                saved[source] = Value(source.root.name, source.shape, source.dtype, kind)
        if saved:
            self._instructions.append(Assign(tuple(saved.values()), tuple(saved)))
        self._instructions.append(Assign(tuple(variables), tuple(saved.get(source, source) for source in sources)))

    def _variable(self, kind: relay.Type, span: relay.Span, name: str, scope: str = "variable") -> Value:
        if isinstance(kind, relay.ListType):
            kind, scope = kind.elements[-1], "list"
        if not isinstance(kind, relay.TensorType):
            raise InternalError(f"expected a tensor, got {kind}")
        return Value(span.tensor or name, kind.shape, kind.dtype, scope)

    def _label(self, name: str) -> Label:
        self._labels += 1
        return Label(f"{name}_{self._labels}")


def _fields(function: relay.Function) -> tuple[relay.Expr, ...]:
    """Return the fields of a function's body: its results, then the values of its symbols."""
    return function.body.fields if isinstance(function.body, relay.Tuple) else (function.body,)


def is_flow(expr: relay.Expr) -> TypeGuard[relay.If | relay.Call]:
    """Return whether an expression is a branch or a call of a function of the module."""
    return isinstance(expr, relay.If) or (isinstance(expr, relay.Call) and isinstance(expr.op, relay.GlobalVar))


def is_list_operator(expr: relay.Expr) -> TypeGuard[relay.Call]:
    """Return whether an expression is a call of an operator on lists."""
    called = relay.operator(expr)
    return called is not None and called.kind is Kind.LIST


def _mentioned(expr: relay.Expr) -> list[Symbol]:
    """Return the symbols that an expression requires: those of its type and of the operators in a fused group."""
    extents = list(relay.extents_of([expr.type]))
    if isinstance(expr, relay.Call):
        inside = [expr] if isinstance(expr.op, Operator) else []
        if isinstance(expr.op, relay.Function):
            inside = [item for item in post_order(expr.op.body) if isinstance(item, relay.Call)]
        for call in inside:
            extents += relay.extents_of([call.type])
            extents += dims_in(call.attrs.values())
    return symbols_of(extents)


def _scheduled(
    wanted: Sequence[relay.Expr], definers: Mapping[Symbol, relay.Expr], done: Mapping[relay.Expr, Value]
) -> list[relay.Expr]:
    """Return expressions in an order in which they can be computed."""

    def needs(expr: relay.Expr) -> Iterator[relay.Expr]:
        for symbol in _mentioned(expr):
            if symbol in definers and definers[symbol] is not expr:
                yield definers[symbol]
        yield from children(expr)

    order: list[relay.Expr] = []
    seen: set[relay.Expr] = set(done)
    for root in wanted:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, needs(root))]
        while stack:
            node, rest = stack[-1]
            child = next((item for item in rest if item not in seen), None)
            if child is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, needs(child)))
    return order


def _passed_on(module: relay.IRModule, name: str) -> set[int]:
    """Return the indices of the parameters that all iterations of a loop pass on unchanged."""
    kept = set(range(len(module.functions[name].params)))
    pending: list[tuple[str, tuple[int | None, ...]]] = [(name, tuple(sorted(kept)))]
    seen = set(pending)
    while pending:
        callee, origins = pending.pop()
        function = module.functions[callee]
        known = dict(zip(function.params, origins, strict=True))
        body = function.body
        if isinstance(body, relay.If):
            calls = [(body.then.name, body.args), (body.otherwise.name, body.args)]
        elif isinstance(body, relay.Call) and isinstance(body.op, relay.GlobalVar):
            calls = [(body.op.name, body.args)]
        else:
            continue
        for target, args in calls:
            given = tuple(known.get(arg) if isinstance(arg, relay.Var) else None for arg in args)
            if target == name:
                kept -= {index for index, origin in enumerate(given) if origin != index}
            elif (target, given) not in seen:
                seen.add((target, given))
                pending.append((target, given))
    return kept
