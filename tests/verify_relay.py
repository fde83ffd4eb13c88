"""Check that a Relay module is well-formed, as tests do after passes."""

from __future__ import annotations

from collections.abc import Iterator

from mlfc.errors import InternalError, MlfcError, TypeCheckError
from mlfc.relay.faults import definition_faults, state_faults
from mlfc.relay.ir import (
    Call,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    call_function,
    if_else,
)
from mlfc.relay.op import Operator
from tests.verify_relay_control import circles
from tests.verify_relay_symbols import scope, symbol_faults

_SHOWN_FAULTS = 20


def verify(module: IRModule) -> None:
    """Raise InternalError with every fault of a module's scopes, types, names and calls.

    Faults are a variable that no function binds, a duplicate parameter name, a call whose type or attributes differ
    from the result of its operator's rule, a reference to a function that does not exist or has another type, recursion
    other than a conditional tail call, symbols without a source, with two sources or that depend on themselves, and
    output names that do not match the results.
    """
    faults = [f"@{name}: {fault}" for name in sorted(module.functions) for fault in _function_faults(module, name)]
    faults += [f"@{name}: {fault}" for name in sorted(module.functions) for fault in symbol_faults(module, name)]
    faults += circles(module)
    faults += _output_faults(module)
    faults += state_faults(module)
    if faults:
        shown = "; ".join(faults[:_SHOWN_FAULTS])
        more = f"; and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise InternalError(f"the module is not well-formed: {shown}{more}")


def _function_faults(module: IRModule, name: str) -> Iterator[str]:
    """Yield the faults of a function and of its nested functions."""
    pending = [module.functions[name]]
    seen = set(pending)
    while pending:
        function = pending.pop()
        names = [param.name for param in function.params]
        for twice in sorted({title for title in names if names.count(title) > 1}):
            yield f"two parameters are called '{twice}'"
        yield from definition_faults(function)
        for expr in scope(function):
            yield from _expr_faults(module, function, expr)
            nested = expr.op if isinstance(expr, Call) else expr
            if isinstance(nested, Function) and nested not in seen:
                seen.add(nested)
                pending.append(nested)


def _expr_faults(module: IRModule, function: Function, expr: Expr) -> Iterator[str]:
    if isinstance(expr, Var) and expr not in function.params:
        yield f"the variable %{expr.name} is not bound"
    elif isinstance(expr, GlobalVar):
        yield from _global_faults(module, expr)
    elif isinstance(expr, TupleGetItem):
        kind = expr.value.type
        if not isinstance(kind, TupleType) or not 0 <= expr.index < len(kind.fields):
            yield f"there is no field {expr.index} in {kind}"
    elif isinstance(expr, Call):
        yield from _call_faults(module, expr)
    elif isinstance(expr, If):
        yield from _if_faults(module, expr)


def _call_faults(module: IRModule, call: Call) -> Iterator[str]:
    place = f" (node {', '.join(call.span.nodes)})" if call.span.nodes else ""
    if isinstance(call.op, Operator):
        yield from (f"{fault}{place}" for fault in _operator_faults(call, call.op))
        return
    if isinstance(call.op, GlobalVar):
        yield from _global_faults(module, call.op)
    try:
        call_function(call.op, call.args, type=call.type)
    except TypeCheckError:
        given = tuple(arg.type for arg in call.args)
        yield f"a function of type {call.op.type} is called with {given} for {call.type}{place}"


def _if_faults(module: IRModule, expr: If) -> Iterator[str]:
    for target in (expr.then, expr.otherwise):
        yield from _global_faults(module, target)
    try:
        if_else(expr.condition, expr.then, expr.otherwise, expr.args, type=expr.type)
    except TypeCheckError as error:
        yield f"{error.cause}{f' (node {expr.span.place})' if expr.span.nodes else ''}"


def _operator_faults(call: Call, operator: Operator) -> Iterator[str]:
    try:
        full = operator.complete(call.attrs)
        if operator.num_inputs is not None and len(call.args) != operator.num_inputs:
            yield f"{operator.name} takes {operator.num_inputs} arguments, not {len(call.args)}"
            return
        result = operator.infer([arg.type for arg in call.args], full)
    except (MlfcError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        yield f"{operator.name} does not take its arguments: {error}"
        return
    if full != dict(call.attrs):
        yield f"{operator.name} has incomplete attributes {dict(call.attrs)}"
    if result != call.type:
        yield f"{operator.name} is of {call.type}, but its rule gives {result}"


def _global_faults(module: IRModule, reference: GlobalVar) -> Iterator[str]:
    target = module.functions.get(reference.name)
    if target is None:
        yield f"there is no function @{reference.name}"
    elif target.type != reference.type:
        yield f"@{reference.name} is of type {target.type}, but is used as {reference.type}"


def _output_faults(module: IRModule) -> Iterator[str]:
    if "main" not in module.functions:
        yield "there is no function @main"
        return
    body = module.main.body
    results = len(body.fields) - len(module.main.defines) if isinstance(body, Tuple) else 1
    names = module.output_names
    if names and len(names) != results:
        yield f"{results} results have {len(names)} names"
    if len(set(names)) != len(names):
        yield f"output names are not unique: {', '.join(names)}"
