"""Evaluation of an operator on constants, by running its own loop-level rule.

A constant folded this way equals the result of compiled code. Operators have no second implementation, except sums and
extremes of integers, which do not depend on the order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import UnsupportedError
from mlfc.relay import ir as relay
from mlfc.relay.op import Kind, Operator
from mlfc.support import cost, dtypes
from mlfc.support.dims import dims_in
from mlfc.target.features import Features
from mlfc.tir import interpreter, visitor
from mlfc.tir.context import Context, Output, Tensor, buffer_of, from_buffer
from mlfc.tir.ir import PrimFunc, Var

Array = npt.NDArray[Any]

# Limits beyond which the work is left to the compiled code: elements of a result that is computed at once, and
# statements that are interpreted one by one. All work on one model has a limit too, in `support.cost`.
_ELEMENT_LIMIT = 1 << 28
_STEP_LIMIT = 20_000
_PART_ELEMENTS = 1 << 20


def of_nothing(call: relay.Call) -> Array | None:
    """Return the value of a call whose result is empty, or whose sums of products have zero terms."""
    operator, kind = call.op, call.type
    if not isinstance(operator, Operator) or not isinstance(kind, relay.TensorType) or not kind.is_static:
        return None
    is_empty = any(isinstance(arg.type, relay.TensorType) and arg.type.size == 0 for arg in call.args)
    if kind.size and not (is_empty and operator.takes_bias):
        return None
    cost.require("constants", kind.nbytes, operator.name)
    return np.zeros(kind.shape, dtypes.to_numpy(kind.dtype))


def evaluate(call: relay.Call) -> Array | None:
    """Return the value of an operator call on Constants or Tuples of Constants.

    Returns None if the call does not have that form, the operator has no loop-level rule (its result is a tuple), or
    the work exceeds the limits. Raises LimitError if the model has used up its budget for constants.
    """
    operator, kind = call.op, call.type
    flat = [part for arg in call.args for part in (arg.fields if isinstance(arg, relay.Tuple) else (arg,))]
    values = [arg.data for arg in flat if isinstance(arg, relay.Constant)]
    if len(values) != len(flat) or not isinstance(operator, Operator) or not isinstance(kind, relay.TensorType):
        return None
    if any(True for _ in dims_in((kind.shape, *call.attrs.values()))):
        return None  # depends on runtime values
    if kind.size > _ELEMENT_LIMIT:
        return None
    nothing = of_nothing(call)
    if nothing is not None:
        return nothing
    if operator.kind is Kind.VIEW:
        return values[0].view(dtypes.to_numpy(kind.dtype)).reshape(kind.shape)
    place = ", ".join(call.span.nodes) or operator.name
    cost.require("constants", kind.nbytes, place)
    kinds = [dtypes.from_numpy(array.dtype) for array in values]
    buffers = [buffer_of(f"a{index}", array.shape, kinds[index]) for index, array in enumerate(values)]
    inputs = [from_buffer(buffer, array) for buffer, array in zip(buffers, values, strict=True)]
    if operator.compute is not None:
        return _at_once(operator, call.attrs, kind, inputs, place)
    if operator.of_constants is not None:
        known: Array | None = operator.of_constants(call.attrs, kind, *values)
        if known is not None:
            cost.spend("steps", sum(array.size for array in values), place)
            return known
    if operator.emit is not None:
        return _interpreted(operator, call.attrs, kind, inputs, place)
    return None


def _stored(array: Array) -> Array:
    """Return an array as loop-level code sees it: narrow dtypes as bytes."""
    return array.view(dtypes.to_numpy(dtypes.stored(dtypes.from_numpy(array.dtype))))


def _at_once(
    operator: Operator, attrs: relay.Attrs, kind: relay.TensorType, inputs: Sequence[Tensor], place: str
) -> Array:
    """Evaluate the expression of one element on the grid of all indices."""
    ctx = Context(Features())
    assert operator.compute is not None
    indices = [Var(f"i{axis}") for axis in range(len(kind.shape))]
    element = operator.compute(ctx, inputs, attrs, kind)(indices)
    lets, _ = visitor.inside_lets(ctx.stmts.finish())
    nodes = {node for expr in (element, *(let.value for let in lets)) for node in visitor.walk_expr(expr)}
    cost.spend("steps", kind.size * len(nodes), place)
    result = np.empty(kind.shape, dtypes.to_numpy(dtypes.stored(kind.dtype)))
    memory = {**{tensor.in_memory(): _stored(tensor.array()) for tensor in inputs}, **dict(ctx.constants)}
    for part in _parts(kind.shape):
        grids = np.ogrid[part] if part else ()
        env = {var: grid.astype(np.int32) for var, grid in zip(indices, grids, strict=True)}
        for let in lets:
            env[let.var] = interpreter.evaluate_expr(let.value, env, memory)
        result[part] = interpreter.evaluate_expr(element, env, memory)
    return result.view(dtypes.to_numpy(kind.dtype))


def _parts(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield slices of a shape along its longest axis; each node of the expression allocates one slice."""
    whole = tuple(slice(0, extent) for extent in shape)
    size = math.prod(shape)
    if size <= _PART_ELEMENTS:
        yield whole
        return
    axis = max(range(len(shape)), key=lambda axis: shape[axis])
    step = max(1, _PART_ELEMENTS * shape[axis] // size)
    for start in range(0, shape[axis], step):
        yield (*whole[:axis], slice(start, min(start + step, shape[axis])), *whole[axis + 1 :])


def _interpreted(
    operator: Operator, attrs: relay.Attrs, kind: relay.TensorType, inputs: Sequence[Tensor], place: str
) -> Array | None:
    """Emit the operator's loops and run them."""
    ctx = Context(Features())
    result = buffer_of("result", kind.shape, kind.dtype)
    assert operator.emit is not None
    try:
        operator.emit(ctx, inputs, attrs, Output(kind.shape, kind.dtype, partial(ctx.stmts.store, result)))
    except UnsupportedError:  # unsupported in this layout; a pass may choose another
        return None
    prim = PrimFunc(
        operator.name, tuple(tensor.in_memory() for tensor in inputs), tuple(buffer for buffer, _ in ctx.constants),
        result, tuple(ctx.scratch_buffers), ctx.stmts.finish(),
    )  # fmt: skip
    values = [_stored(tensor.array()) for tensor in inputs]
    try:
        constants = [array for _, array in ctx.constants]
        value, statements = interpreter.run_counted(prim, values, constants, step_limit=_STEP_LIMIT)
    except interpreter.StepLimitError:
        value, statements = None, _STEP_LIMIT
    cost.spend("steps", statements * cost.STATEMENT_STEPS, place)
    return None if value is None else value.view(dtypes.to_numpy(kind.dtype))
