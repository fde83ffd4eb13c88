"""Classical machine learning operators: decision trees in tables, n-gram counts, and pairwise coupling."""

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
    """Return tables of random trees, some with branches that end early; thresholds also occur as values in the data."""
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
    """Return the scores of rows; an index that is out of range in a table is clamped."""
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
    """Return ensembles with every comparison, several comparisons, every aggregate, and corrupt tables."""
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
    return [*cases, *_ngram_cases(), *_coupling_cases()]


def ngram_counts(tokens: Array, tables: Sequence[Array], columns: int, longest: int, skips: int) -> Array:
    """Return the count of each n-gram of a tree in each row, by a token-by-token search."""
    first, key, column = ([int(item) for item in table] for table in tables)
    result = np.zeros((len(tokens), columns), np.float32)
    for row, values in enumerate(tokens.tolist()):
        for step in range(1, skips + 2):
            for start in range(len(values)):
                node = 0
                for size, token in enumerate(values[start::step][:longest], 1):
                    below = range(min(max(first[node], 0), len(key)), min(max(first[node + 1], 0), len(key)))
                    found = next((at for at in below if key[at] == token), None)
                    if found is None:
                        break
                    if 0 <= column[found] < columns and (size > 1 or step == 1):
                        result[row, column[found]] += 1
                    node = found + 1
    return result


def _ngram_cases() -> list[Case]:
    """Return trees of n-grams of one to three tokens, with rows of several lengths, and with corrupt tables."""
    rng = np.random.default_rng(40)
    # the n-grams are 7 7 -2; 7 9; 8 7
    first = np.array([0, 2, 4, 5, 6, 6, 6, 6], np.int32)
    key, column = np.array([7, 8, 7, 9, 7, -2], np.int64), np.array([0, 4, 1, -1, 4, 2], np.int32)
    big = np.array([(1 << 40) - 1, 1 << 40, 7, 9, 7, -(1 << 62)], np.int64)
    cases = []

    def add(label: str, tokens: Array, tables: list[Array], **attrs: int) -> None:
        result = ngram_counts(tokens, tables, **attrs)
        cases.append(Case("ml.ngram_counts", [tokens, *tables], lambda: result, attrs, label=label))

    for length, skips in ((1, 0), (2, 3), (12, 0), (12, 4), (5, 60)):
        tokens = rng.choice(np.array([7, 8, 9, -2], np.int32), (3, length))
        add(f"{length} tokens, {skips} skips", tokens, [first, key, column], columns=5, longest=3, skips=skips)
    add("runs of one", tokens, [first, key.astype(np.int32), column], columns=6, longest=1, skips=9)
    wide = rng.choice(big, (2, 40))
    add("int64", wide, [first.astype(np.uint8), big, column.astype(np.int64)], columns=5, longest=3, skips=1)
    wild = np.array([0, 2, -4, 1 << 30, 6, -(1 << 31), 6, 2], np.int32)
    lies = [wild, np.sort(big), np.array([0, 9, -5, 1 << 30, 4, 1], np.int32)]
    add("tables that lie", wide[:, :20], lies, columns=5, longest=7, skips=1)
    return cases


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
    """Return class probabilities in float32 as libsvm computes them."""
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
