"""The sequence of graph passes. Passes run on functions whose branches and calls are replaced by variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import OptionError
from mlfc.relay.faults import state_faults
from mlfc.relay.ir import Call, Expr, Function, GlobalVar, If, IRModule, ListType, Tuple, TupleGetItem, TupleType, Var
from mlfc.relay.text import by_parameter_name
from mlfc.relay.visitor import called_functions, children, post_order, substitute, with_children
from mlfc.support.cost import limited
from mlfc.transform.attention_orders import AttentionOrders
from mlfc.transform.bind_params import BindParams
from mlfc.transform.center_weights import CenterWeights
from mlfc.transform.convert_layout import ConvertLayout
from mlfc.transform.decompose import Decompose
from mlfc.transform.expand_attention import ExpandAttention
from mlfc.transform.fold_constant import FoldConstant
from mlfc.transform.fold_pad import FoldPad
from mlfc.transform.fold_scale import FoldScale
from mlfc.transform.fuse import FuseOps
from mlfc.transform.layer_norm import RecognizeLayerNorm
from mlfc.transform.matching import flat_args
from mlfc.transform.move_views import MoveViews
from mlfc.transform.pack_weights import PackWeights
from mlfc.transform.partition import PartitionGraph
from mlfc.transform.quantize import CanonicalizeQuantized
from mlfc.transform.recognize_attention import RecognizeAttention
from mlfc.transform.simplify import Simplify
from mlfc.transform.sink_dequantize import SinkDequantize
from mlfc.transform.to_dense import ToDense
from mlfc.transform.unpack_params import UnpackParams

Pass: TypeAlias = Callable[[IRModule], IRModule]

PASSES: tuple[Pass, ...] = (
    UnpackParams(),
    Decompose(),
    Simplify(),
    RecognizeLayerNorm(),
    RecognizeAttention(),
    ToDense(),
    CanonicalizeQuantized(),  # before FoldConstant: it needs the weights as integers
    PackWeights(),  # likewise, for the remaining weights
    FoldConstant(),
    Simplify(),
    AttentionOrders(),
    ToDense(),
    FoldScale(),
    FoldPad(),
    CenterWeights(),
    ConvertLayout(),
    FoldConstant(),
    Simplify(),
    MoveViews(),
    Simplify(),
    SinkDequantize(),
    FuseOps(),
)


def run(
    module: IRModule,
    params: Mapping[str, npt.NDArray[Any]] | None = None,
    *,
    partition: PartitionGraph | None = None,
    on_device: bool = False,
    copies: bool = True,
    after_each: Callable[[str, IRModule], None] | None = None,
) -> IRModule:
    """Return the module with its parameters bound and all passes applied to each function, for `transform.lower`.

    Functions that are unreachable from ``main`` are removed. `params` are values of parameters of ``main``.
    `partition` assigns parts to external code generators before the rest is fused. `on_device`: whether a device runs
    groups. `copies`: as for `FuseOps`; False for dynamic programs. `after_each` is called as ``(name, module)`` after
    each pass of each function, with the name of the pass's class, to verify or print the module.
    """
    external: tuple[Pass, ...] = () if partition is None else (partition,)
    passes: tuple[Pass, ...] = (*PASSES[:-1], *external, FuseOps(copies=copies))
    if on_device:  # devices have float templates, and memory for float weights
        passes = tuple(step for step in passes if not isinstance(step, PackWeights))
        passes = tuple(ExpandAttention() if isinstance(step, RecognizeAttention) else step for step in passes)
    module = _states_first(module) if copies else module
    functions = {}
    for name in ("main", *sorted(called_functions(module, "main") - {"main"})):
        parts = cut(module.functions[name])
        alone = replace(module, functions={"main": parts.function})
        bind: Pass = BindParams(params or {} if name == "main" else {})
        for step in (bind, *passes):
            alone = step(alone)
            if after_each is not None:
                after_each(type(step).__name__, alone)
        functions[name] = parts.restored(alone.main)
    return replace(module, functions=functions)


def _states_first(module: IRModule) -> IRModule:
    """Return the module with the next values of states first: they are lowered first, so their lifetimes end early."""
    if not module.states or not isinstance(module.main.body, Tuple):
        return module
    kept = {state.output for state in module.states}
    pairs = sorted(zip(module.output_names, module.main.body.fields, strict=True), key=lambda pair: pair[0] not in kept)
    names, heads = zip(*pairs, strict=True)
    return replace(module.with_body(Tuple(heads, module.main.body.span)), output_names=names)


def checked_params(module: IRModule, params: Mapping[str, npt.NDArray[Any]] | None) -> dict[str, npt.NDArray[Any]]:
    """Return the parameters of a module by name; keys may also be the names of variables in its Relay text.

    Raises OptionError if the arguments are of the wrong type or order.
    """
    if not isinstance(module, IRModule):
        raise OptionError(
            f"expected IRModule, got {type(module).__name__}",
            next_step="Pass the module and params that mlfc.import_model(file) returns, as two arguments",
        )
    if not isinstance(params, Mapping | None):
        raise OptionError(
            f"expected params to be a mapping of names to arrays, got {type(params).__name__}",
            next_step="Pass the params that mlfc.import_model(file) returns as its second value",
        )
    for fault in state_faults(module):
        raise OptionError(fault, place="states")
    values = by_parameter_name(module.main, params or {})
    for state in module.states:
        if state.input in values:
            raise OptionError(f"params must not contain a value for the state '{state.input}'", place="states")
    return values


def within_limits(
    module: IRModule, params: Mapping[str, npt.NDArray[Any]], factor: float
) -> AbstractContextManager[object]:
    """Limit the cost of compiling a module by its parameters and tensors; see `mlfc.support.cost`."""
    calls = (expr for expr in post_order(module.main.body) if isinstance(expr, Call))
    tensors = sum(1 + len(flat_args(call)) for call in calls)
    return limited(sum(np.asarray(value).nbytes for value in params.values()), tensors, factor)


@dataclass(frozen=True, eq=False)
class _Opaque:
    """An extracted expression, the variables that replace its results, and its arguments in the cut function."""

    expr: Expr
    variables: tuple[Var, ...]
    args: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class Cut:
    """A function without its control flow; the last parameters and results are those of extracted expressions."""

    function: Function
    original: Function
    opaque: tuple[_Opaque, ...]
    is_tail: bool  # whether the whole body was extracted

    def restored(self, function: Function) -> Function:
        """Return the transformed `function` with the control flow restored."""
        if not self.opaque:
            return function
        fields = function.body.fields if isinstance(function.body, Tuple) else (function.body,)
        count = len(fields) - sum(len(item.args) for item in self.opaque)
        results, rest = fields[:count], list(fields[count:])
        known: dict[Expr, Expr] = {}
        expr: Expr | None = None
        for item in self.opaque:
            args = [substitute(rest.pop(0), known) for _ in item.args]
            expr = with_children(item.expr, args)
            if isinstance(expr.type, TupleType):
                known.update((var, TupleGetItem(expr, index, var.span)) for index, var in enumerate(item.variables))
            else:
                known[item.variables[0]] = expr
        params = function.params[: len(function.params) - sum(len(item.variables) for item in self.opaque)]
        if self.is_tail:
            assert expr is not None
            return Function(params, expr, self.original.attrs, self.original.span)
        whole = Tuple(tuple(results), self.original.body.span)
        body = substitute(whole if isinstance(self.original.body, Tuple) else results[0], known)
        return Function(params, body, self.original.attrs, self.original.span)


def is_opaque(expr: Expr) -> bool:
    """Return whether an expression is opaque to passes: a branch, a function call or an operator on lists."""
    if isinstance(expr, If):
        return True
    if not isinstance(expr, Call):
        return False
    return isinstance(expr.op, GlobalVar) or any(isinstance(item.type, ListType) for item in (expr, *expr.args))


def cut(function: Function) -> Cut:
    """Extract the control flow of a function."""
    done: dict[Expr, Expr] = {}
    opaque: list[_Opaque] = []
    for expr in post_order(function.body):
        args = [done[child] for child in children(expr)]
        if is_opaque(expr):
            kinds = expr.type.fields if isinstance(expr.type, TupleType) else (expr.type,)
            variables = tuple(
                Var(f"{_PREFIX}{len(opaque)}_{index}", kind, expr.span)  # type: ignore[arg-type]  # no functions
                for index, kind in enumerate(kinds)
            )
            opaque.append(_Opaque(expr, variables, tuple(args)))
            done[expr] = Tuple(variables) if isinstance(expr.type, TupleType) else variables[0]
        elif isinstance(expr, TupleGetItem) and isinstance(done[expr.value], Tuple):
            fields = done[expr.value]
            assert isinstance(fields, Tuple)
            done[expr] = fields.fields[expr.index]
        else:
            done[expr] = with_children(expr, args)
    body = done[function.body]
    is_tail = is_opaque(function.body)
    results: Sequence[Expr] = () if is_tail else body.fields if isinstance(body, Tuple) else (body,)
    if not opaque:
        return Cut(function, function, (), is_tail=False)
    heads = (*results, *(arg for item in opaque for arg in item.args))
    params = (*function.params, *(var for item in opaque for var in item.variables))
    return Cut(Function(params, Tuple(heads), function.attrs, function.span), function, tuple(opaque), is_tail)


_PREFIX = "opaque_"
