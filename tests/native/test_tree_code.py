"""Decision trees as nested conditions and as tables, compiled: the same bits, and no compiler warnings."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc.codegen.c import print_function
from mlfc.kernels import trees
from mlfc.relay import ir
from mlfc.target.features import PLAIN, Features
from tests.c_files import print_file
from tests.ml_cases import FEATURES, random_tables, scores
from tests.native.kernel_runner import UNOPTIMIZED, BuiltKernel, Kernels, group_of

Array = np.ndarray[Any, Any]
STRICT = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c")
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 0.5, 3.4e38, -3.4e38]
# comparison, aggregate, targets, dtype
CASES = [
    ("le", "add", 1, "float32"), ("lt_or_nan", "add", 2, "float32"), ("gt", "add", 6, "float32"),
    ("ge_or_nan", "min", 3, "float32"), ("le", "max", 5, "float64"),
]  # fmt: skip
TARGETS = {"host": Features(), "plain": PLAIN, "small": replace(PLAIN, optimize="size")}


def inputs_of(number: int) -> tuple[Array, list[Array]]:
    name, _, targets, dtype = CASES[number]
    tables = random_tables(number, trees=4, depth=4, targets=targets, dtype=dtype)
    tables[1][: len(EDGES)] = [0.25 if np.isnan(edge) or (edge == -np.inf and name[:2] in ("lt", "ge")) else edge
                               for edge in EDGES]  # fmt: skip
    tables[5][np.random.default_rng(number).random(tables[5].shape) < 0.4] = 0
    data = np.random.default_rng(number).integers(-3, 4, (len(EDGES), FEATURES)).astype(dtype) / 2
    for column in range(FEATURES):
        data[:, column] = np.where(np.arange(len(EDGES)) % 3 == column % 3, np.roll(EDGES, column), data[:, column])
    return data, tables


def groups() -> dict[tuple[int, str], tuple[ir.Function, Features]]:
    found = {}
    for number, (name, aggregate, _, _) in enumerate(CASES):
        data, tables = inputs_of(number)
        param = ir.Var("data", ir.TensorType(data.shape, str(data.dtype)))
        attrs = {"comparisons": (name,), "aggregate": aggregate}
        body = ir.call("ml.tree_ensemble", [param, *map(ir.const, tables)], attrs)
        found |= {(number, target): (group_of(body, [param]), features) for target, features in TARGETS.items()}
    return found


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernels[tuple[int, str]]]:
    """Return the kernels of all cases and targets, by the form of leaves."""
    found = {}
    for form, size in (("literals", 0), ("numbers", 1 << 30)):
        with pytest.MonkeyPatch.context() as monkeypatch:
            if size:
                monkeypatch.setattr(trees, "_ADDED_BYTES", size)
                monkeypatch.setattr(trees, "_STORED_BYTES", size)
            found[form] = Kernels(groups(), UNOPTIMIZED)
            assert found[form][0, "host"].source
    return found


def test_conditions_and_tables_compute_the_same_bits(kernels: dict[str, Kernels[tuple[int, str]]]) -> None:
    for number, (name, aggregate, _, _) in enumerate(CASES):
        data, tables = inputs_of(number)
        expected = scores(data, tables, (name,), aggregate)
        for form, built in kernels.items():
            for target in TARGETS:
                found: BuiltKernel = built[number, target]
                assert ("do {" in found.source) == (target == "small")
                assert found(data).tobytes() == expected.tobytes(), (number, form, target)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compilers_warn_of_no_conditions(
    kernels: dict[str, Kernels[tuple[int, str]]], compiler: str, tmp_path: Path
) -> None:
    targets = ("host", "plain")
    chosen = [built[number, each].group.prim for number in range(len(CASES)) for built in kernels.values()
              for each in targets]  # fmt: skip
    functions = [print_function(prim, f"kernel{number}") for number, prim in enumerate(chosen)]
    (tmp_path / "kernels.c").write_text(print_file(functions))
    subprocess.run([compiler, *STRICT, "kernels.c"], cwd=tmp_path, check=True)
