"""Reductions and image operators as compiled C, against the references of their interpreted rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from mlfc.relay import ir
from mlfc.target.features import Features
from tests.image_cases import block_cases, resize_cases
from tests.native.kernel_runner import Kernels, build, group_of
from tests.operator_cases import Case
from tests.reduction_cases import reduce_cases

# cases differ in sizes, rarely in code: every fifth resize covers all methods and layouts
CASES = [case for case in (*reduce_cases(), *resize_cases()[::5], *block_cases()) if 0 not in np.shape(case.args[0])]


def group(case: Case) -> tuple[ir.Function, Features]:
    params = [ir.Var(f"x{i}", ir.tensor_type(ir.const(arg))) for i, arg in enumerate(case.args)]
    return group_of(ir.call(case.operator, params, case.attrs), params), Features()


@cache
def kernels() -> Kernels[int]:
    return Kernels(dict(enumerate(map(group, CASES))))


@pytest.mark.parametrize("index", range(len(CASES)), ids=[str(case) for case in CASES])
def test_against_reference(index: int) -> None:
    CASES[index].check(kernels()[index](*CASES[index].args))


_LONG = [((1, 300000), (1,)), ((60000, 3), (0,)), ((1, 224, 224, 3), (1, 2)), ((512, 9), (0,)), ((70000, 2), (0, 1))]


@pytest.mark.parametrize(("shape", "axes"), _LONG)
def test_long_float_sums_stay_accurate(shape: Sequence[int], axes: tuple[int, ...]) -> None:
    random = np.random.default_rng(0).random(shape, np.float32) + np.float32(0.5)
    run = build(*group(Case("sum", [random], lambda: random, {"axis": axes})))
    np.testing.assert_allclose(run(random), random.sum(axes, dtype=np.float64), rtol=5e-7)
    # rounding errors of equal elements do not cancel out
    equal = np.full(shape, 1.2345, np.float32)
    np.testing.assert_allclose(run(equal), equal.sum(axes, dtype=np.float64), rtol=4e-6)
    infinite = random.copy()
    infinite.flat[5] = np.inf
    np.testing.assert_array_equal(np.isinf(run(infinite)), np.isinf(infinite.sum(axes)))
    assert not np.isnan(run(infinite)).any()
    overflow = np.full(shape, 3e38, np.float32)
    assert (run(overflow) == np.inf).all()
    infinite.flat[5 + 2 * (1 if len(shape) - 1 in axes else shape[-1])] = -np.inf  # of the same result
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isnan(run(infinite)), np.isnan(infinite.sum(axes)))
