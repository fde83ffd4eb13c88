"""Tying an input of a model to the output that is its next value: the compiled model keeps both to itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from mlfc.errors import OptionError, unknown
from mlfc.frontend.common import Params, frozen_input
from mlfc.relay.ir import Expr, IRModule, State, TensorType, tensor_type

ZEROS = "zeros"


def tie_states(
    module: IRModule,
    params: Params,
    pairs: Mapping[str, str] | None = None,
    initial: Mapping[str, npt.ArrayLike] | str | None = None,
) -> IRModule:
    """Return a module with more states, or with other initial values.

    Parameters
    ----------
    module : IRModule
        As imported; it may have states already.
    params : dict of str to ndarray
        Its weights, which are no inputs.
    pairs : mapping of str to str, optional
        The output that is the next value of each of these inputs.
    initial : mapping of str to array_like, or ``zeros``, optional
        What states begin with, by name; the others keep what they have: zeros, unless the model says otherwise.

    Raises
    ------
    OptionError
        For names that the model does not have, tensors that do not fit each other or are tied twice, and values that do
        not fit.
    """
    inputs = {param.name: tensor_type(param) for param in module.main.params if param.name not in params}
    outputs = _outputs(module)
    kept = {state.input for state in module.states}
    taken = {state.output for state in module.states}
    states = list(module.states)
    for name, result in (pairs or {}).items():
        free = [item for item in inputs if item not in kept]
        if name not in inputs:
            raise OptionError(unknown("input", name, free), place="state")
        if result not in outputs:
            raise OptionError(unknown("output", result, [item for item in outputs if item not in taken]), place="state")
        if name in kept or result in taken:
            tensor = f"input '{name}'" if name in kept else f"output '{result}'"
            raise OptionError(f"the {tensor} is tied to state twice", place="state")
        given, wanted = tensor_type(outputs[result]), inputs[name]
        if given != wanted:
            raise OptionError(
                f"expected an output of the type of the input '{name}', {wanted}, got '{result}': {given}",
                place="state",
            )
        kept.add(name)
        taken.add(result)
        states.append(State(name, result))
    if states and len(taken) == len(outputs):
        raise OptionError("every output is tied to state, so the model would return nothing", place="state")
    return replace(module, output_names=tuple(outputs), states=_with_initial(states, inputs, initial))


def _outputs(module: IRModule) -> dict[str, Expr]:
    heads = module.outputs
    names = module.output_names or tuple(f"output{i}" if len(heads) > 1 else "output" for i in range(len(heads)))
    return dict(zip(names, heads, strict=True))


def _with_initial(
    states: list[State], inputs: Mapping[str, TensorType], initial: Mapping[str, npt.ArrayLike] | str | None
) -> tuple[State, ...]:
    if initial is None:
        return tuple(states)
    if isinstance(initial, str):
        if initial != ZEROS:
            raise OptionError(f"expected '{ZEROS}' or arrays by name, got '{initial}'", place="state_init")
        return tuple(replace(state, initial=None) for state in states)
    missing = [name for name in initial if name not in {state.input for state in states}]
    if missing:
        raise OptionError(unknown("state", missing[0], [state.input for state in states]), place="state_init")
    return tuple(
        replace(state, initial=_value(state.input, initial[state.input], inputs[state.input]))
        if state.input in initial
        else state
        for state in states
    )


def _value(name: str, value: npt.ArrayLike, kind: TensorType) -> npt.NDArray[Any]:
    return frozen_input(value, name, kind.dtype, kind.shape)
