"""Run a graph operator by operator, as a reference for tests of graph passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from mlfc.ops.evaluate import evaluate
from mlfc.relay import ir
from mlfc.relay.visitor import children, post_order, with_children

Array = npt.NDArray[Any]


def run_main(module: ir.IRModule, inputs: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of ``main``, fused or not."""
    values: dict[ir.Expr, ir.Expr] = {param: ir.Constant(inputs[param.name]) for param in module.main.params}
    result = _run(module.main.body, values)
    fields = result.fields if isinstance(result, ir.Tuple) else (result,)
    return [field.data for field in fields if isinstance(field, ir.Constant)]


def _run(body: ir.Expr, done: dict[ir.Expr, ir.Expr]) -> ir.Expr:
    for node in post_order(body):
        if node in done:
            continue
        args = [done[child] for child in children(node)]
        if isinstance(node, ir.Call) and isinstance(node.op, ir.Function):
            done[node] = _run(node.op.body, dict(zip(node.op.params, args, strict=True)))
        elif isinstance(node, ir.Call):
            ready = with_children(node, args)
            assert isinstance(ready, ir.Call)
            value = evaluate(ready)
            assert value is not None, f"{ir.op_name(ready)} cannot be evaluated"
            done[node] = ir.Constant(value)
        else:
            done[node] = with_children(node, args)
    return done[body]


def operators(module: ir.IRModule) -> list[str]:
    """Return the names of the operators of ``main``, joined by plus signs within a fused group."""
    names = []
    for node in post_order(module.main.body):
        if isinstance(node, ir.Call) and isinstance(node.op, ir.Function):
            inner = [ir.op_name(item) or "" for item in post_order(node.op.body) if isinstance(item, ir.Call)]
            names.append("+".join(inner))
        elif isinstance(node, ir.Call):
            names.append(ir.op_name(node) or "")
    return names


def free_vars(expr: ir.Expr) -> list[ir.Var]:
    """Return the variables that `expr` reads and does not bind, in traversal order."""
    bound = set(expr.params) if isinstance(expr, ir.Function) else set()
    return [node for node in post_order(expr) if isinstance(node, ir.Var) and node not in bound]
