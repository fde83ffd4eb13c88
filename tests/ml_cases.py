"""Operators of classical machine learning: decision trees in tables, probabilities of classes from those of pairs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.operator_cases import Case

Array = npt.NDArray[Any]
COMPARE = {name: getattr(operator, name) for name in ("le", "lt", "ge", "gt", "eq", "ne")}
FEATURES = 5


def random_tables(seed: int, trees: int = 4, depth: int = 4, targets: int = 2, dtype: str = "float32") -> list[Array]:
    """Return tables of random trees, of which some branches end early; thresholds are among the values of the data."""
    rng = np.random.default_rng(seed)
    following: list[list[int]] = []
    depths, roots, leaves = [], [], 0

    def grow(left: int) -> tuple[int, int]:
        nonlocal leaves
        if left == 0 or (left < depth - 1 and rng.random() < 0.3):
            leaves += 1
            return -leaves, 0
        at = len(following)
        following.append([0, 0])
        ends = [grow(left - 1) for _ in range(2)]
        following[at] = [end for end, _ in ends]
        return at, 1 + max(deep for _, deep in ends)

    for _ in range(trees):
        root, deep = grow(depth)
        roots.append(root)
        depths.append(deep)
    inner = len(following)
    table = np.asarray(following)
    return [
        rng.integers(0, FEATURES, inner).astype(np.uint8),
        rng.integers(-3, 4, inner).astype(dtype) / 2,
        np.where(table < 0, inner - 1 - table, table).astype(np.uint16),
        np.asarray(roots, np.int32),
        np.asarray(depths, np.int64),
        rng.standard_normal((leaves, targets)).astype(dtype),
    ]


def rows(seed: int, count: int = 7, dtype: str = "float32") -> Array:
    data = np.random.default_rng(seed).integers(-3, 4, (count, FEATURES)).astype(dtype) / 2
    data[0, :3] = np.nan, np.inf, -np.inf
    return data


def scores(data: Array, tables: Sequence[Array], comparisons: Sequence[str], aggregate: str) -> Array:
    """Return the scores of rows; what a table says beyond its own sizes is taken as the nearest that there is."""
    feature, threshold, following, root, depth, score, *modes = tables
    inner = len(feature)
    start = {"add": 0.0, "min": np.inf, "max": -np.inf}[aggregate]
    combine = {"add": np.add, "min": np.minimum, "max": np.maximum}[aggregate]
    result = np.full((len(data), score.shape[1]), start, score.dtype)
    for row, values in enumerate(data):
        for tree in range(len(root)):
            at = int(root[tree])
            for _ in range(min(max(int(depth[tree]), 0), inner)):
                if 0 <= at < inner:
                    value = values[min(max(int(feature[at]), 0), len(values) - 1)]
                    number = int(modes[0][at]) if modes else 0
                    name = comparisons[number if 0 <= number < len(comparisons) else -1]
                    holds = COMPARE[name.removesuffix("_or_nan")](value, threshold[at])
                    holds = holds or (name.endswith("_or_nan") and np.isnan(value))
                    at = int(following[at, int(holds)])
            leaf = min(max(at - inner, 0), len(score) - 1)
            result[row] = combine(result[row], score[leaf])
    return result


def ml_cases() -> list[Case]:
    """Return ensembles with every comparison, several at once, every aggregate, and tables that lie."""
    cases = []

    def add(label: str, data: Array, tables: list[Array], comparisons: tuple[str, ...], aggregate: str = "add") -> None:
        attrs = {"comparisons": comparisons, "aggregate": aggregate}
        result = scores(data, tables, comparisons, aggregate)
        cases.append(Case("ml.tree_ensemble", [data, *tables], lambda: result, attrs, label=label))

    for seed, name in enumerate((*COMPARE, "le_or_nan", "ge_or_nan", "eq_or_nan")):
        add(name, rows(seed), random_tables(seed), (name,))
    mixed = random_tables(20)
    names = ("le", "eq_or_nan", "gt")
    add("mixed", rows(20), [*mixed, np.arange(len(mixed[0]), dtype=np.uint8) % 3], names)
    add("one target", rows(21), random_tables(21, targets=1), ("lt",))
    add("one tree", rows(22), random_tables(22, trees=1), ("le",))
    add("float64", rows(23, dtype="float64"), random_tables(23, dtype="float64"), ("le",))
    for aggregate in ("min", "max"):
        add(aggregate, rows(24), random_tables(24), ("le",), aggregate)
    wild = random_tables(25)
    wild[0] = np.resize(np.asarray([0, -1, 99, -(1 << 31), 4, 1], np.int32), len(wild[0]))
    wild[2] = np.resize(np.asarray([3, -5, 1 << 40, 2, -(1 << 40), 12, 7, 0], np.int64), wild[2].shape)
    wild[3] = np.asarray([0, -1, 1 << 31, 3], np.int64)
    wild[4] = np.asarray([1 << 62, 3, -1, 2], np.int64)
    add("tables that lie", rows(25), wild, ("le",))
    return [*cases, *_coupling_cases()]


def _coupling_cases() -> list[Case]:
    cases = []
    for classes in (2, 3, 5):
        pairs = np.random.default_rng(classes).random((4, classes * (classes - 1) // 2)).astype(np.float32)
        pairs[0], pairs[1] = 1e-7, 1 - 1e-7
        result = np.asarray([_coupled(row, classes) for row in pairs])
        cases.append(Case("ml.pairwise_coupling", [pairs], lambda result=result: result, label=f"{classes}",
                          relative=1e-4))  # fmt: skip
    return cases


def _coupled(pairs: Array, classes: int) -> Array:
    """Return the probabilities of classes as libsvm computes them, in float32."""
    single = np.float32
    likely = np.zeros((classes, classes), single)
    likely[np.triu_indices(classes, 1)] = pairs
    likely += np.tril(1 - likely.T, -1)
    matrix = -likely.T * likely
    np.fill_diagonal(matrix, [sum(likely[j, t] ** 2 for j in range(classes) if j != t) for t in range(classes)])
    guess = np.full(classes, 1 / classes, single)
    for _ in range(100):
        product = matrix @ guess
        total = guess @ product
        if np.abs(product - total).max() < 0.005 / classes:
            break
        for t in range(classes):
            change = (total - product[t]) / matrix[t, t]
            guess[t] += change
            total = (total + change * (change * matrix[t, t] + 2 * product[t])) / (1 + change) / (1 + change)
            product = (product + change * matrix[t]) / (1 + change)
            guess /= 1 + change
    return guess
