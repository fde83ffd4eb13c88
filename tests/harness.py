"""Compile a Relay module to C and by LLVM, build it and load it, as most tests of arithmetic do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mlfc
from mlfc.relay import ir
from mlfc.support import dtypes
from mlfc.support.module_info import ModuleInterface
from tests.verify_tir import verify

Array = npt.NDArray[Any]


def compiled(
    module: ir.IRModule, params: Mapping[str, Array], folder: Path, *, by_llvm: bool = True, **options: Any
) -> Any:
    """Return the loaded module: kernels proven in bounds, archive written to `folder`, C built for the host.

    Its results are compared with those of LLVM's code for the same module. Pass ``by_llvm=False`` for whole models:
    they take LLVM long to compile, and their operators are compared one by one elsewhere.
    """
    name = options.pop("module_name", "tested")
    factory = mlfc.build(module, params=params, module_name=name, **options)
    for kernel in factory.program.kernels:
        verify(kernel)
    loaded = mlfc.load(mlfc.export_model_library_format(factory, folder / f"{name}.tar"))
    if str(factory.target) != "c" or not by_llvm:
        return loaded
    other = {**options, "target": "llvm"}
    return BothPrinters(loaded, mlfc.build(module, params=params, module_name=name, **other).runtime)


def loaded_by_llvm(module: ir.IRModule, params: Mapping[str, Array], **options: Any) -> Any:
    """Return a module that LLVM compiled in this process; it needs neither an archive nor a C compiler."""
    factory = mlfc.build(module, "llvm", params, module_name="tested", **options)
    for kernel in factory.program.kernels:
        verify(kernel)
    return factory.runtime


@lru_cache(maxsize=16)
def built(path: Path, target: str, executor: str = "aot") -> Any:
    """Return the factory of a model file, compiled once per process for all tests that only read it."""
    module, params = mlfc.import_model(path)
    return mlfc.build(module, target, params, module_name="model", executor=executor)


class BothPrinters:
    """A module compiled to C; `run` also compares it with the same module compiled by LLVM."""

    def __init__(self, in_c: Any, by_llvm: Any) -> None:
        self._in_c = in_c
        self._by_llvm = by_llvm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._in_c, name)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run both, fail if they differ, and return the outputs of the C module."""
        outputs: dict[str, Array] = self._in_c.run(inputs)
        other = self._by_llvm.run(inputs)
        assert list(outputs) == list(other)
        for name, output in outputs.items():
            assert_same_code(other[name], output, name)
        return outputs


def assert_same_code(ours: Array, theirs: Array, what: str) -> None:
    """Fail unless LLVM's code and the C code computed the same.

    Integers must be equal. So are floats as long as gcc fuses exactly the products that are operands of sums. At -O3
    its optimizer fuses more where it moves a product next to a sum, and less where it separates them, so last bits may
    differ, as they may with clang.
    """
    if ours.dtype == dtypes.to_numpy("bfloat16"):  # NumPy does not treat bfloat16 as a float
        ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
    if ours.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs), what)
        scale = float(np.max(np.abs(theirs[np.isfinite(theirs)]), initial=0.0))
        np.testing.assert_allclose(ours, theirs, rtol=4e-7, atol=4e-7 * scale, err_msg=what)
    else:
        np.testing.assert_array_equal(ours, theirs, what)


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


def interface(**fields: Any) -> ModuleInterface:
    """Return the interface of a module by the keys of its JSON; sizes default to 0."""
    sizes = ("workspace_bytes", "workspace_lower_bound_bytes", "constants_bytes", "io_bytes")
    memory = {**dict.fromkeys(sizes, 0), **fields.pop("memory", {})}
    return ModuleInterface.from_json({"external_workspace": False, "workspace_peers": [], **fields, "memory": memory})
