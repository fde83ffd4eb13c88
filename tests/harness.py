"""Compile a Relay module to C, build it, load it: what most tests of arithmetic do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mlforge
from mlforge.relay import ir
from mlforge.tir.verify import verify

Array = npt.NDArray[Any]


def compiled(module: ir.IRModule, params: Mapping[str, Array], folder: Path, **options: Any) -> Any:
    """Return the loaded module: kernels proven in bounds, archive written to `folder`, C built for this machine."""
    name = options.pop("module_name", "tested")
    factory = mlforge.build(module, params=params, module_name=name, **options)
    for kernel in factory.program.kernels:
        verify(kernel)
    return mlforge.load(mlforge.export_model_library_format(factory, folder / f"{name}.tar"))


def module_of(inputs: Mapping[str, Array], outputs: Mapping[str, Any]) -> ir.IRModule:
    """Return a module with inputs shaped like arrays, and each output computed by ``build(vars)``."""
    variables = {
        name: ir.Var(name, ir.TensorType(array.shape, ir.dtypes.from_numpy(array.dtype)))
        for name, array in inputs.items()
    }
    bodies = [make(variables) for make in outputs.values()]
    body = bodies[0] if len(bodies) == 1 else ir.Tuple(tuple(bodies))
    return ir.IRModule({"main": ir.Function(tuple(variables.values()), body)}, tuple(outputs))


def seeded_inputs(infos: Any, seed: int) -> dict[str, Array]:
    """Return random inputs over the whole range of integers, normal for floats."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for info in infos:
        dtype = np.dtype(info.dtype)
        if dtype.kind == "f":
            inputs[info.name] = rng.standard_normal(info.shape).astype(dtype)
        else:
            limits = np.iinfo(dtype)
            inputs[info.name] = rng.integers(limits.min, limits.max + 1, info.shape).astype(dtype)
    return inputs


def edge_inputs(infos: Any) -> list[dict[str, Array]]:
    """Return the all-lowest, all-highest and all-zero-point inputs of an integer model."""
    cases = []
    for pick in (lambda i: np.iinfo(i.dtype).min, lambda i: np.iinfo(i.dtype).max, lambda i: i.zero_point):
        cases.append({info.name: np.full(info.shape, pick(info), info.dtype) for info in infos})
    return cases


def assert_close(ours: Array, reference: Array, relative: float, what: str) -> None:
    """Fail unless the largest difference is within `relative` of the largest reference magnitude."""
    assert ours.shape == reference.shape, what
    largest = float(np.max(np.abs(reference))) if reference.size else 0.0
    difference = float(np.max(np.abs(ours.astype(np.float64) - reference))) if reference.size else 0.0
    assert difference <= relative * largest, f"{what}: difference {difference:.3g} of {largest:.3g}"
