"""Checks of functions and states in modules that are read from text or an archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from mlfc.relay.ir import Function, IRModule, TensorType, Tuple, Type
from mlfc.support import dtypes


def definition_faults(function: Function) -> Iterator[str]:
    """Yield the faults of the fields named by ``defines``."""
    if not function.defines:
        return
    count = len(function.defines)
    fields = function.body.fields if isinstance(function.body, Tuple) else ()
    if len(fields) <= count:
        yield f"it defines {count} symbols, so its body must be a tuple of more than {count} fields"
        return
    for symbol, field in zip(function.defines, fields[-count:], strict=True):
        kind = field.type
        is_number = isinstance(kind, TensorType) and kind.is_static and kind.size == 1
        if not is_number or not isinstance(kind, TensorType) or not dtypes.is_integer(kind.dtype):
            yield f"expected one integer for the symbol {symbol}, got {kind}"


def state_faults(module: IRModule) -> Iterator[str]:
    """Yield the faults of a module's states."""
    if not module.states or "main" not in module.functions:
        return
    body = module.main.body
    heads = body.fields if isinstance(body, Tuple) else (body,)
    outputs = dict(zip(module.output_names, heads, strict=False))
    inputs = {param.name: param for param in module.main.params}
    for kind, names in (
        ("input", [state.input for state in module.states]),
        ("output", [state.output for state in module.states]),
    ):
        yield from (f"the {kind} '{name}' belongs to two states" for name, count in Counter(names).items() if count > 1)
    for state in module.states:
        if state.input not in inputs or state.output not in outputs:
            yield f"the state '{state.input}' requires an input of this name and the output '{state.output}'"
        elif inputs[state.input].type != outputs[state.output].type:
            yield (
                f"the state '{state.input}' is of type {inputs[state.input].type}, its output '{state.output}' of "
                f"{outputs[state.output].type}"
            )
        elif state.initial is not None and not _is_of(state.initial, inputs[state.input].type):
            yield f"the initial values of the state '{state.input}' have another type"
    if len(module.states) >= len(heads):
        yield "every output belongs to a state"


def _is_of(array: npt.NDArray[Any], kind: Type) -> bool:
    return isinstance(kind, TensorType) and array.shape == kind.shape and array.dtype == dtypes.to_numpy(kind.dtype)
