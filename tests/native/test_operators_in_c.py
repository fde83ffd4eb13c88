"""Operators as compiled C, against the same references as their numpy implementations."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.relay import ir
from tests import ml_cases, operator_cases
from tests.harness import compiled
from tests.operator_cases import Case

FAMILIES = {
    "unary": operator_cases.unary_cases,
    "binary": operator_cases.binary_cases,
    "shape": operator_cases.shape_cases,
    "indexing": operator_cases.indexing_cases,
    "nn": operator_cases.nn_cases,
    "pool": operator_cases.pool_cases,
    "ml": ml_cases.ml_cases,
}


def _argument(name: str, value: Any, inputs: dict[str, Any]) -> ir.Expr:
    """Return an array as a model input, a scalar as a constant, a tuple as a tuple of inputs."""
    if isinstance(value, tuple):
        return ir.Tuple(tuple(_argument(f"{name}_{index}", item, inputs) for index, item in enumerate(value)))
    array = np.asarray(value)
    if array.ndim == 0:
        return ir.const(array)
    inputs[name] = array
    return ir.Var(name, ir.TensorType(array.shape, str(array.dtype)))


def _variables(expr: ir.Expr) -> list[ir.Var]:
    if isinstance(expr, ir.Var):
        return [expr]
    return list(chain.from_iterable(map(_variables, expr.fields))) if isinstance(expr, ir.Tuple) else []


def module_of(cases: list[Case]) -> tuple[ir.IRModule, dict[str, Any]]:
    """Return a module with one output per case, and its inputs."""
    inputs: dict[str, Any] = {}
    bodies, variables = [], []
    for index, case in enumerate(cases):
        args = [_argument(f"x{index}_{position}", arg, inputs) for position, arg in enumerate(case.args)]
        variables += list(chain.from_iterable(map(_variables, args)))
        bodies.append(ir.call(case.operator, args, case.attrs))
    names = tuple(f"y{index}" for index in range(len(cases)))
    return ir.IRModule({"main": ir.Function(tuple(variables), ir.Tuple(tuple(bodies)))}, names), inputs


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str, tmp_path: Path) -> None:
    cases: list[Case] = FAMILIES[family]()
    module, inputs = module_of(cases)
    results = compiled(module, {}, tmp_path).run(inputs)
    failures = []
    for name, case in zip(module.output_names, cases, strict=True):
        try:
            case.check(results[name])
        except AssertionError as error:
            failures.append(f"{case}: {error}")
    assert not failures, "\n".join(failures)
