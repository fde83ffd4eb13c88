"""Merge many small models into one module, so that one compilation serves all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from mlfc.relay import ir

Array = npt.NDArray[Any]


def merge(models: Sequence[tuple[ir.IRModule, dict[str, Array]]]) -> tuple[ir.IRModule, dict[str, Array], list[int]]:
    """Return one module that computes all models, its parameters, and the first output of each model.

    The names of their inputs, parameters and outputs must differ; `onnx.compose.add_prefix` ensures it.
    """
    variables: list[ir.Var] = []
    bodies: list[ir.Expr] = []
    names: list[str] = []
    params: dict[str, Array] = {}
    firsts = []
    for module, weights in models:
        variables += module.main.params
        params |= weights
        body = module.main.body
        firsts.append(len(bodies))
        bodies += body.fields if isinstance(body, ir.Tuple) else (body,)
        names += module.output_names
    main = ir.Function(tuple(variables), ir.Tuple(tuple(bodies)))
    return ir.IRModule({"main": main}, tuple(names)), params, firsts
