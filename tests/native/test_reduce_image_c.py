"""Reductions and image operators as compiled C, against the same references as their interpreted rules."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc import ops  # noqa: F401  (registers the operators)
from mlfc.codegen.c import print_file, print_function
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.image_cases import block_cases, resize_cases
from tests.native.kernel_runner import FUSING, BuiltKernel
from tests.native.llvm_functions import beside_c
from tests.operator_cases import Case
from tests.reduction_cases import reduce_cases
from tests.shared_library import compile_shared

# Sizes differ from case to case, code does not: every fifth resize covers all methods and layouts.
CASES = [case for case in (*reduce_cases(), *resize_cases()[::5], *block_cases()) if 0 not in np.shape(case.args[0])]


def lowered(case: Case) -> LoweredGroup:
    params = [ir.Var(f"x{i}", ir.tensor_type(ir.const(arg))) for i, arg in enumerate(case.args)]
    body = ir.call(case.operator, params, case.attrs)
    return lower_group(ir.Function(tuple(params), body, {"Primitive": 1}), Features())


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], BuiltKernel]:
    """Compile all cases in one go: starting a compiler for each costs more than its work."""
    groups = [lowered(case) for case in CASES]
    source = print_file([print_function(group.prim, f"kernel{i}") for i, group in enumerate(groups)])
    folder: Path = tmp_path_factory.mktemp("kernels")
    path = compile_shared({"kernels.c": source.encode()}, folder / "kernels.so", FUSING)
    library = ctypes.CDLL(str(path))
    llvm = beside_c({f"kernel{i}": group.prim for i, group in enumerate(groups)}, FUSING)

    def kernel(index: int) -> BuiltKernel:
        name = f"kernel{index}"
        return BuiltKernel(groups[index], _Named(library, name), source, _Named(llvm, name))

    return kernel


class _Named:
    """A library whose one kernel has another name."""

    def __init__(self, library: Any, name: str) -> None:
        self._function = getattr(library, name)

    def kernel(self, *arguments: Any) -> int:
        return int(self._function(*arguments))


@pytest.mark.parametrize("index", range(len(CASES)), ids=[str(case) for case in CASES])
def test_against_reference(compiled: Callable[[int], BuiltKernel], index: int) -> None:
    CASES[index].check(compiled(index)(*CASES[index].args))


@pytest.mark.parametrize(("shape", "axes"), [((1, 300000), (1,)), ((60000, 3), (0,)), ((1, 224, 224, 3), (1, 2))])
def test_long_float_sums_stay_accurate(tmp_path: Path, shape: Sequence[int], axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random(shape, np.float32) + np.float32(0.5)
    expected = x.sum(axes, dtype=np.float64)
    case = Case("sum", [x], lambda: expected, {"axis": axes})
    group = lowered(case)
    source = print_file([print_function(group.prim, "kernel")])
    library = ctypes.CDLL(str(compile_shared({"kernel.c": source.encode()}, tmp_path / "kernel.so", FUSING)))
    result = BuiltKernel(group, library, source, beside_c({"kernel": group.prim}, FUSING))(x)
    np.testing.assert_allclose(result, expected, rtol=5e-7)
