"""From a fused module whose course depends on the run to steps: functions are spelled out where they are called.

The call of a function in its own tail, through whatever branches, is a jump; that is how Relay writes loops. What a
loop passes on to itself unchanged is no variable. Expressions are lowered when what defines their symbols has been.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy.typing as npt

from mlfc.errors import InternalError, UnsupportedError
from mlfc.relay import ir as relay
from mlfc.relay.dynamic import extents_of, unproven_extents
from mlfc.relay.op import Operator
from mlfc.relay.visitor import called_functions, children, post_order
from mlfc.support.cost import spend
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, dims_in, symbols_of
from mlfc.target.features import Features
from mlfc.tir.program import (
    Assign,
    Branch,
    BranchOnSymbols,
    CheckBounds,
    CheckDimension,
    Define,
    Instruction,
    Jump,
    KernelCall,
    Label,
    ListOperation,
    Program,
    Return,
    SetSymbols,
    StateValue,
    Value,
)
from mlfc.transform.device_placement import DEFINES, DevicePlacement, place_steps_on_device
from mlfc.transform.lower import ProgramBuilder


def lower_steps(
    module: relay.IRModule,
    features: Features,
    name: str = "default",
    special: Sequence[tuple[Mapping[Symbol, int], relay.IRModule]] = (),
    device: tuple[str, Features] | None = None,
) -> Program:
    """Lower a module whose functions were fused, each by itself.

    `special` are modules that do the same for certain values of symbols of the inputs: the first that fits is run.
    `device` is a kind of device that runs what it can, with its features; `features` are the host's.
    Raises UnsupportedError for recursion that is no loop.
    """
    modules = [module, *(other for _, other in special)]
    placed = [place_steps_on_device(each, *device) for each in modules] if device else []
    groups = {call: group for each in placed for call, group in each.groups.items()}
    placement = DevicePlacement(device[0], groups, frozenset()) if device else None
    return _StepBuilder(module, features, placement).lowered(name, special)


def defined_symbols(function: relay.Function) -> tuple[Symbol, ...]:
    """Return the symbols that the last fields of a function's body define."""
    return tuple(function.attrs.get(DEFINES, ()))


def results_of(function: relay.Function) -> tuple[relay.Expr, ...]:
    """Return the expressions that a function returns."""
    fields = _fields(function)
    return fields[: len(fields) - len(defined_symbols(function))]


@dataclass(frozen=True, eq=False)
class _Tail:
    """What becomes of a function's results: they are assigned, and the run goes on at `end`; or they are the model's.

    `loops` are the functions in whose tail this is, with their variables.
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
    """One function where it is spelled out."""

    function: relay.Function
    values: dict[relay.Expr, Value]
    # results of branches and of calls, by the expression
    tuples: dict[relay.Expr, tuple[Value, ...]] = field(default_factory=dict)
    checked: dict[Dim, int] = field(default_factory=dict)  # lower bounds that run-time checks establish


class _StepBuilder(ProgramBuilder):
    def __init__(self, module: relay.IRModule, features: Features, placement: DevicePlacement | None = None) -> None:
        super().__init__(features, placement=placement)
        self._module = module
        self._instructions: list[Instruction] = []
        self._known: set[Symbol] = set()
        self._entered: list[str] = []
        self._labels = 0

    def lowered(self, name: str, special: Sequence[tuple[Mapping[Symbol, int], relay.IRModule]]) -> Program:
        self._suit_rounding([self._module, *(module for _, module in special)])
        main = self._module.main
        inputs = tuple(self._input(param) for param in main.params)
        self._require_fixed_states(inputs)
        self._bind_inputs(inputs)
        general, bound = self._module, frozenset(self._known)
        for values, module in special:
            self._module = module
            other = self._label("other_extents")
            self._instructions.append(BranchOnSymbols(tuple(values.items()), other))
            fixed = [_of_type(value, param) for value, param in zip(inputs, module.main.params, strict=True)]
            self._function("main", fixed, _Tail())
            self._instructions.append(other)
            self._known = set(bound)
        self._module = general
        written = self._function("main", inputs, _Tail())
        outputs = self._declared(main, written)
        self._share(self._shared_calls([item for item in self._instructions if isinstance(item, KernelCall)]))
        calls = tuple(item for item in self._instructions if isinstance(item, KernelCall))
        read = {value.root for call in calls for value in (*call.inputs, *call.constants)}
        read |= {value.root for item in self._instructions for value in _passed(item)}
        kept = {state.input for state in self._module.states}
        states = self._states_of({value.name: value for value in inputs}, outputs)
        read |= {state.initial for state in states if state.initial is not None}
        return Program(
            name, tuple(value for value in inputs if value.name not in kept), outputs[: len(outputs) - len(states)],
            tuple(value for value in self._constants.values() if value in read),
            tuple(self._kernels.values()), tuple(self._instructions), contracts_floats=not self._rounding_sensitive,
            states=states,
        )  # fmt: skip

    def _share(self, shared: Mapping[KernelCall, KernelCall]) -> None:
        """Let steps make other calls."""
        self._instructions = [
            shared.get(item, item) if isinstance(item, KernelCall) else item for item in self._instructions
        ]

    def _declared(self, main: relay.Function, written: Sequence[Value]) -> tuple[Value, ...]:
        """Return the outputs with the extents of their types: those of one branch alone are not the model's.

        The next values of states have the shapes of the states, which are fixed.
        """
        kinds = [item.type for item in results_of(main)]
        kinds = list(kinds[0].fields) if isinstance(kinds[0], relay.TupleType) else kinds
        names, kept = self._module.output_names, {state.output for state in self._module.states}
        if kept:  # as `_returned` puts them last
            kinds = [kind for name, kind in zip(names, kinds, strict=True) if name not in kept]
        outputs = (
            replace(value, shape=kind.shape) if isinstance(kind, relay.TensorType) else value
            for value, kind in zip(written, kinds, strict=False)
        )
        return (*outputs, *written[len(kinds) :])

    def _require_fixed_states(self, inputs: Sequence[Value]) -> None:
        kept = {state.input for state in self._module.states}
        for value in inputs:
            if value.name in kept and symbols_of(value.shape):
                fixed = ",".join(str(extent) if isinstance(extent, int) else "1" for extent in value.shape)
                raise UnsupportedError(
                    f"the state '{value.name}' has an open shape, and it is kept in memory of fixed size",
                    place=f"state '{value.name}'",
                    next_step=f"Fix it: --shape {value.name}={fixed}",
                )

    def _states_of(self, inputs: Mapping[str, Value], outputs: Sequence[Value]) -> tuple[StateValue, ...]:
        """Return the states; their next values are the last outputs."""
        states = self._module.states
        following = outputs[len(outputs) - len(states) :]
        return tuple(
            StateValue(inputs[state.input], after, after, None, self._initial(state))
            for state, after in zip(states, following, strict=True)
        )

    def _initial(self, state: relay.State) -> Value | None:
        """Return the constant with the elements of a state before the first run; None for zeros."""
        if state.initial is None or not state.initial.any():
            return None
        return self._constant(state.input, state.initial)

    def _input(self, param: relay.Var) -> Value:
        kind = relay.tensor_type(param)
        return Value(param.name, kind.shape, kind.dtype, "input")

    def _bind_inputs(self, inputs: Sequence[Value]) -> None:
        """Define the symbols of the inputs' extents, and check every other extent."""
        places = [(value, axis, extent) for value in inputs for axis, extent in enumerate(value.shape)]
        waiting = []
        for value, axis, extent in places:
            symbol = extent.symbol if isinstance(extent, Dim) else None
            if symbol is not None and symbol not in self._known:
                self._known.add(symbol)
                self._instructions.append(Define(symbol, value, axis))
            else:
                waiting.append(CheckDimension(value, axis, extent))
        for require in waiting:
            self._divide(require)
            unknown = [symbol for symbol in symbols_of([require.extent]) if symbol not in self._known]
            if unknown:
                raise UnsupportedError(
                    f"the symbol {unknown[0]} is in the expression {require.extent} alone",
                    place=f"input '{require.source.name}'",
                    next_step=f"Let an input have the extent {unknown[0]} itself",
                )
        self._instructions += waiting

    def _divide(self, require: CheckDimension) -> None:
        """Define the symbol that an extent is a multiple of; whether it is one is checked behind it."""
        multiple = require.extent.multiple if isinstance(require.extent, Dim) else None
        if multiple is None or multiple[1] in self._known:
            return
        count, symbol = multiple
        whole = Symbol(f"{require.source.name}, axis {require.axis}", 0, LARGEST)
        self._instructions.append(Define(whole, require.source, require.axis))
        self._instructions.append(SetSymbols((symbol,), (whole.dim // count,)))
        self._known.add(symbol)

    # functions

    def _function(self, name: str, args: Sequence[Value], tail: _Tail) -> tuple[Value, ...]:
        """Write a function applied to arguments; return the results where they are the model's."""
        function = self._module.functions[name]
        frame = _Frame(function, dict(zip(function.params, args, strict=True)))
        self._entered.append(name)
        body = function.body
        results: tuple[Value, ...] = ()
        if isinstance(body, relay.If):
            self._evaluate(frame, (body.condition, *body.args))
            results = self._branches(frame, body, tail)
        elif isinstance(body, relay.Call) and isinstance(body.op, relay.GlobalVar):
            self._evaluate(frame, body.args)
            results = self._call(frame, body, tail)
        else:
            self._evaluate(frame, body.fields if isinstance(body, relay.Tuple) else (body,))
            results = tuple(value for item in results_of(function) for value in self._of(frame, item))
            if tail.results is None:
                results = self._returned(results)
            else:
                assert tail.end is not None
                self._instructions += [Assign(tail.results, results), Jump(tail.end)]
        self._entered.pop()
        return results

    def _on(self, value: Value, device: str | None) -> Value:
        """Return the value itself: bytecode has tensors where they are read, for only the run knows where some are."""
        del device
        return value

    def _constant(self, name: str, array: npt.NDArray[Any], device: str | None = None) -> Value:
        """Return a constant of the host, of which runs have copies on devices."""
        del device
        return super()._constant(name, array)

    def _returned(self, results: Sequence[Value]) -> tuple[Value, ...]:
        """Write the end of the run; an output that is an input, a constant or another output is copied."""
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
                self._instructions.append(self._kernel_call(self._copying(value), [value], owned, ()))
            taken.add(owned.root)
            outputs.append(replace(owned, name=name, kind="output", alias_of=owned, start=0))
        self._instructions.append(Return(tuple(outputs)))
        return tuple(outputs)

    def _of(self, frame: _Frame, expr: relay.Expr) -> tuple[Value, ...]:
        return frame.tuples[expr] if expr in frame.tuples else (frame.values[expr],)

    def _evaluate(self, frame: _Frame, wanted: Sequence[relay.Expr]) -> None:
        """Write what computes expressions, each after what it reads and after what defines its symbols."""
        function = frame.function
        symbols = defined_symbols(function)
        defining = dict(zip(_fields(function)[len(_fields(function)) - len(symbols) :], symbols, strict=True))
        definers: dict[Symbol, relay.Expr] = {symbol: expr for expr, symbol in defining.items()}
        own = set(symbols_of(_extents([param.type for param in function.params])))
        for expr in {expr: None for root in (*wanted, *defining) for expr in post_order(root)}:
            if _defines_extents(expr):
                for symbol in symbols_of(_extents([expr.type])):
                    # what reads a symbol from this very expression comes too late for it
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
        if isinstance(expr, relay.If):
            self._joined(frame, expr, self._branches)
        elif isinstance(expr, relay.Call) and isinstance(expr.op, relay.GlobalVar):
            self._joined(frame, expr, self._call)
        elif is_list_operator(expr):
            self._list(frame, expr)
        elif isinstance(expr, relay.TupleGetItem):
            frame.values[expr] = frame.tuples[expr.value][expr.index]
        elif isinstance(expr, relay.Tuple):
            frame.tuples[expr] = tuple(value for item in expr.fields for value in self._of(frame, item))
        else:
            self._lower(frame, expr)

    def _lower(self, frame: _Frame, expr: relay.Expr) -> None:
        """Write an operator or constant as in a program without branches."""
        for child in children(expr):
            self._values[id(child)] = frame.values[child]
        before = len(self._calls)
        self._require_extents(frame, expr)
        self._values.pop(id(expr), None)
        self._visit(expr, None)
        self._instructions += self._calls[before:]
        frame.values[expr] = self._values[id(expr)]

    def _require_extents(self, frame: _Frame, expr: relay.Expr) -> None:
        """Add run-time checks that no dimension of a result is negative, and that windows fit into their data."""
        if not isinstance(expr, relay.Call) or not isinstance(expr.op, relay.Function):
            return
        for call in post_order(expr.op.body):
            for extent, least in unproven_extents(call).items() if isinstance(call, relay.Call) else ():
                if frame.checked.get(extent, -1) < least:
                    frame.checked[extent] = least
                    place = call.span.place or relay.op_name(call)
                    self._instructions.append(CheckBounds(Symbol(f"extent of the result of '{place}'", least), extent))

    def _list(self, frame: _Frame, expr: relay.Call) -> None:
        """Write an operator on lists."""
        name = relay.op_name(expr) or ""
        kind = "variable" if name == "list_get" else "intermediate"
        output = self._variable(expr.type, expr.span, name, kind)
        fresh = tuple(symbol for symbol in symbols_of(output.shape) if symbol not in self._known)
        if output.kind == "list":
            fresh = ()
        inputs = tuple(frame.values[arg] for arg in expr.args)
        items = expr.args[0].type if expr.args else None
        ranks = items.ranks if isinstance(items, relay.ListType) else ()
        self._instructions.append(ListOperation(name, inputs, output, fresh, expr.attrs, ranks))
        self._known.update(fresh)
        frame.values[expr] = output

    # branches and calls

    def _joined(self, frame: _Frame, expr: Any, write: Any) -> None:
        """Write branches or a call whose results are read afterwards: variables, which every way assigns."""
        kinds = expr.type.fields if isinstance(expr.type, relay.TupleType) else (expr.type,)
        results = tuple(self._variable(kind, expr.span, f"result{index}") for index, kind in enumerate(kinds))
        end = self._label("join")
        write(frame, expr, _Tail(results, end))
        self._instructions.append(end)
        frame.tuples[expr] = results
        if not isinstance(expr.type, relay.TupleType):
            frame.values[expr] = results[0]
        for value in results:
            # the extents of a list are those of its tensors, each for itself
            for axis, extent in enumerate(() if value.kind == "list" else value.shape):
                symbol = extent.symbol if isinstance(extent, Dim) else None
                if symbol is not None and symbol not in self._known:
                    self._known.add(symbol)
                    self._instructions.append(Define(symbol, value, axis))

    def _branches(self, frame: _Frame, expr: relay.If, tail: _Tail) -> tuple[Value, ...]:
        args = [frame.values[arg] for arg in expr.args]
        otherwise = self._label("else")
        self._instructions.append(Branch(frame.values[expr.condition], otherwise))
        known = set(self._known)
        results: tuple[Value, ...] = ()
        for reference in (expr.then, expr.otherwise):
            if reference is expr.otherwise:
                self._instructions.append(otherwise)
            self._known = set(known)
            results = self._enter(reference, args, [arg.type for arg in expr.args], tail) or results
        self._known = known
        return results

    def _call(self, frame: _Frame, expr: relay.Call, tail: _Tail) -> tuple[Value, ...]:
        assert isinstance(expr.op, relay.GlobalVar)
        args = [frame.values[arg] for arg in expr.args]
        return self._enter(expr.op, args, [arg.type for arg in expr.args], tail)

    def _enter(
        self, reference: relay.GlobalVar, args: Sequence[Value], kinds: Sequence[relay.Type], tail: _Tail
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
                f"the function @{name} calls itself, and goes on afterwards",
                place=f"function @{name}",
                next_step="Only loops can be compiled: let the call be the last thing that the function does",
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
        """Assign arguments to variables, then bind the symbols of these: until then extents are those of arguments."""
        found = relay.bound_symbols(params, given) or {}
        self._instructions += [CheckBounds(symbol, extent) for symbol, extent in found.items() if extent != symbol.dim]
        if pairs:
            variables, sources = zip(*pairs, strict=True)
            self._instructions.append(Assign(variables, sources))
        self._rebind(params, given)

    def _rebind(self, params: Sequence[relay.Type], given: Sequence[relay.Type]) -> None:
        """Let the symbols of parameters be the extents of arguments."""
        found = relay.bound_symbols(params, given)
        if found is None:
            raise InternalError(f"({', '.join(map(str, given))}) are no arguments for ({', '.join(map(str, params))})")
        changed = {symbol: extent for symbol, extent in found.items() if extent != symbol.dim}
        if changed:
            self._instructions.append(SetSymbols(tuple(changed), tuple(changed.values())))
        self._known.update(found)

    def _variable(self, kind: relay.Type, span: relay.Span, name: str, scope: str = "variable") -> Value:
        if isinstance(kind, relay.ListType):
            kind, scope = kind.elements[-1], "list"
        if not isinstance(kind, relay.TensorType):
            raise InternalError(f"expected a tensor, found {kind}")
        return Value(span.tensor or name, kind.shape, kind.dtype, scope)

    def _label(self, name: str) -> Label:
        self._labels += 1
        return Label(f"{name}_{self._labels}")


def _fields(function: relay.Function) -> tuple[relay.Expr, ...]:
    """Return the fields of a function's body: its results, then what defines its symbols."""
    return function.body.fields if isinstance(function.body, relay.Tuple) else (function.body,)


def _of_type(value: Value, param: relay.Var) -> Value:
    """Return an input as the parameter of a module that knows its extents."""
    shape = relay.tensor_type(param).shape
    return value if shape == value.shape else replace(value, shape=shape, alias_of=value)


def is_list_operator(expr: relay.Expr) -> TypeGuard[relay.Call]:
    """Tell whether an expression is a call of an operator on lists."""
    return (relay.op_name(expr) or "").startswith("list_")


def _defines_extents(expr: relay.Expr) -> bool:
    """Tell whether symbols that are new in the type of an expression are read from its value."""
    if isinstance(expr, relay.If) or is_list_operator(expr):
        return True
    return isinstance(expr, relay.Call) and isinstance(expr.op, relay.GlobalVar)


def _passed(item: Instruction) -> Iterator[Value]:
    if isinstance(item, Assign):
        yield from item.sources
    elif isinstance(item, ListOperation):
        yield from item.inputs
    elif isinstance(item, Return):
        yield from item.outputs


def _extents(kinds: Sequence[relay.Type]) -> Iterator[Extent]:
    for kind in kinds:
        yield from extents_of(kind)


def _mentioned(expr: relay.Expr) -> list[Symbol]:
    """Return the symbols that an expression needs: of its type, and of what a fused group does inside."""
    extents = list(_extents([expr.type]))
    if isinstance(expr, relay.Call):
        inside = [expr] if isinstance(expr.op, Operator) else []
        if isinstance(expr.op, relay.Function):
            inside = [item for item in post_order(expr.op.body) if isinstance(item, relay.Call)]
        for call in inside:
            extents += _extents([call.type])
            extents += dims_in(call.attrs.values())
    return symbols_of(extents)


def _scheduled(
    wanted: Sequence[relay.Expr], definers: Mapping[Symbol, relay.Expr], done: Mapping[relay.Expr, Value]
) -> list[relay.Expr]:
    """Return expressions in the order in which they can be computed."""

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
    """Return the parameters that every call of a loop from its own tail passes on as they are."""
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
