"""TfIdfVectorizer: how often known runs of tokens occur, weighted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.node import Node
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support import cost

_MODES = ("TF", "IDF", "TFIDF")
_SKIP_LIMIT = 1 << 15
Grams: TypeAlias = "Mapping[tuple[int, ...], int]"


@importer("TfIdfVectorizer")
def _tfidf_vectorizer(node: Node) -> Expr:
    if node.given("pool_strings"):
        node.unsupported("with terms that are strings is not supported", "Number the tokens before the model")
    mode, shape = node.string("mode"), node.shape(0)
    if mode not in _MODES:
        node.wrong(f"expected mode {', '.join(_MODES)}, got '{mode}'")
    if node.dtype(0) not in ("int32", "int64") or len(shape) > 2:
        node.wrong(f"expected rows of int32 or int64, got {node.dtype(0)} of shape {shape}")
    indexes, weights = node.integers("ngram_indexes"), node.reals("weights", ())
    # the result has a column for each number up to the largest: a file that states one says nothing of its size
    if not indexes or not 0 <= min(indexes) <= max(indexes) < 1 << 24:
        node.wrong("expected ngram_indexes from 0 to 2^24")
    columns = max(indexes) + 1
    if weights and len(weights) != len(indexes):
        node.wrong(f"{len(weights)} weights do not fit {len(indexes)} ngram_indexes")
    counts = _counts(node, _grams(node, indexes), columns)
    if mode == "IDF":
        counts = node.call("greater", counts, node.like(0, counts))
        counts = node.cast(counts, "float32")
    if weights and mode != "TF":
        counts = node.call("multiply", counts, node.constant(_by_column(node, indexes, weights), "float32"))
    return counts if len(shape) == 2 else node.reshape(counts, (columns,))


def _by_column(node: Node, indexes: Sequence[int], weights: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return the weights of the columns; they are given for the runs of the pool."""
    cost.require("constants", 4 * (max(indexes) + 1), node.name)
    found = np.zeros(max(indexes) + 1, np.float32)
    given = np.asarray(weights, np.float32)
    found[list(indexes)] = given
    if (found[list(indexes)] != given).any():
        node.unsupported("with runs of different weights in one column is not supported")
    return found


def _grams(node: Node, indexes: Sequence[int]) -> dict[tuple[int, ...], int]:
    """Return the column of each run that is counted."""
    pool, starts = node.integers("pool_int64s"), node.integers("ngram_counts")
    shortest, longest = node.integer("min_gram_length"), node.integer("max_gram_length")
    if not 1 <= shortest <= longest:
        node.wrong(f"expected 1 <= min_gram_length <= max_gram_length, got {shortest} and {longest}")
    ends = [*starts[1:], len(pool)]
    if len(starts) > len(pool) or any(not 0 <= start <= end for start, end in zip(starts, ends, strict=True)):
        node.wrong(f"ngram_counts {starts[:8]} do not divide a pool of {len(pool)}")
    found: dict[tuple[int, ...], int] = {}
    number = 0
    for size, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        if (end - start) % size:
            node.wrong(f"{end - start} tokens of the pool are no runs of {size}")
        for place in range(start, end, size):
            gram = pool[place : place + size]
            if number >= len(indexes):
                node.wrong(f"{len(indexes)} ngram_indexes are fewer than the runs of the pool")
            if shortest <= size <= longest:
                if gram in found:
                    node.wrong(f"the pool has the run {gram} twice")
                found[gram] = indexes[number]
            number += 1
    return found


def _counts(node: Node, grams: Grams, columns: int) -> Expr:
    rows, length = (1, *node.shape(0))[-2:] if node.rank(0) else (1, 1)
    skips = node.integer("max_skip_count")
    if not 0 <= skips < _SKIP_LIMIT:
        node.wrong(f"expected max_skip_count from 0 to {_SKIP_LIMIT - 1}, got {skips}")
    if not grams or 0 in (rows, length):
        return node.call("zeros", shape=(rows, columns), dtype="float32")
    tables = _tree(grams)
    arguments = [node.constant(table, dtype) for table, dtype in zip(tables, ("int32", "int64", "int32"), strict=True)]
    tokens = node.reshape(node.input(0), (rows, length))
    return node.call(
        "ml.ngram_counts", tokens, *arguments, columns=columns, longest=max(map(len, grams)), skips=skips
    )  # fmt: skip


def _tree(grams: Grams) -> tuple[Any, Any, Any]:
    """Return the tables that ``ml.ngram_counts`` searches, its nodes in the order of their depth."""
    children: dict[tuple[int, ...], set[int]] = {(): set()}
    for gram in grams:
        for size in range(1, len(gram) + 1):
            children.setdefault(gram[:size], set())
            children[gram[: size - 1]].add(gram[size - 1])
    order: list[tuple[int, ...]] = [()]
    first, key, column = [0], [], []
    for path in order:  # which grows
        for token in sorted(children[path]):
            order.append((*path, token))
            key.append(token)
            column.append(grams.get((*path, token), -1))
        first.append(len(key))
    return np.array(first), np.array(key), np.array(column)
