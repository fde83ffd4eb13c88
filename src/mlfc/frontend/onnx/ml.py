"""Classical machine learning: encoders, n-gram counts, linear models, and support vector machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.index import wrapped_indices
from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of
from mlfc.frontend.onnx.table import MICROSOFT, ML, importer
from mlfc.relay.ir import Expr
from mlfc.support import cost

Array = npt.NDArray[Any]


@importer("ArrayFeatureExtractor", domain=ML)
def _array_feature_extractor(node: Node) -> Expr:
    x = node.input(0)
    if not shape_of(x):
        node.wrong("a scalar has no features")
    positions = node.reshape(node.input(1), (int(np.prod(node.shape(1))),))
    picked = node.call("take", x, wrapped_indices(node, positions, shape_of(x)[-1]), axis=len(shape_of(x)) - 1)
    return node.reshape(picked, (1, *shape_of(picked))) if len(shape_of(x)) == 1 else picked


@importer("Scaler", domain=ML)
def _scaler(node: Node) -> Expr:
    x = node.cast(node.input(0), "float32")
    offset = node.constant(node.reals("offset", (0.0,)), "float32")
    scale = node.constant(node.reals("scale", (1.0,)), "float32")
    return node.call("multiply", node.call("subtract", x, offset), scale)


@importer("Normalizer", domain=ML)
def _normalizer(node: Node) -> Expr:
    x = node.cast(node.input(0), "float32")
    norm = node.string("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        node.wrong(f"norm '{norm}' is not known")
    # the largest number of a row, not the largest magnitude
    size = {"MAX": x, "L1": node.call("abs", x), "L2": node.call("multiply", x, x)}[norm]
    total = node.call("max" if norm == "MAX" else "sum", size, axis=(-1,), keepdims=True)
    divisor = node.call("sqrt", total) if norm == "L2" else total
    return node.call("divide", x, node.call("where", node.call("equal", total, 0.0), 1.0, divisor))


@importer("LinearRegressor", domain=ML)
def _linear_regressor(node: Node) -> Expr:
    return transformed(node, _scores(node, node.integer("targets", 1)), node.string("post_transform", "NONE"))


@importer("LinearClassifier", domain=ML, ignores=("multi_class",))
def _linear_classifier(node: Node) -> list[Expr]:
    labels = labels_of(node, "classlabels_ints")
    rows = len(node.reals("intercepts", (0.0,) * max(1, len(labels))))
    transform = node.string("post_transform", "NONE")
    score = scores = _scores(node, rows)
    if rows == 1 and len(labels) == 2:
        scores = node.concatenate([node.call("negative", score), score], 1)
    if len(labels) != shape_of(scores)[1]:
        node.wrong(f"{len(labels)} labels do not fit {shape_of(scores)[1]} scores")
    picked = label_of(node, labels, scores)
    if rows == 1 and len(labels) == 2 and transform not in ("LOGISTIC", "PROBIT"):  # as ONNX Runtime: a probability
        return [picked, node.concatenate([node.call("subtract", 1.0, score), score], 1)]
    return [picked, transformed(node, scores, transform)]


def labels_of(node: Node, attribute: str) -> Array:
    """Return the class labels; raise an error for string labels."""
    if node.given("classlabels_strings"):
        node.unsupported("with labels that are strings is not supported", "Train with integer labels")
    return np.asarray(node.integers(attribute), np.int64)


def label_of(node: Node, labels: Array, scores: Expr) -> Expr:
    """Return the label of the best score of each row."""
    best = node.call("argmax", scores, axis=(1,), keepdims=False)
    return node.call("take", node.constant(labels, "int64"), best, axis=0)


def transformed(node: Node, scores: Expr, transform: str) -> Expr:
    """Apply the `post_transform` of a classifier or regressor to scores of shape (rows, classes)."""
    if transform not in _TRANSFORMS:
        node.wrong(f"unknown post_transform '{transform}'")
    return _TRANSFORMS[transform](node, scores)


def _softmax_zero(node: Node, scores: Expr) -> Expr:
    """Return a softmax that keeps scores of 0 at 0."""
    largest = node.call("max", scores, axis=(1,), keepdims=True)
    power = node.call("exp", node.call("subtract", scores, largest))
    is_zero = node.call("less_equal", node.call("abs", scores), 1e-7)
    small = node.call("multiply", scores, node.call("exp", node.call("negative", largest)))
    powers = node.call("where", is_zero, small, power)
    return node.call("divide", powers, node.call("sum", powers, axis=(1,), keepdims=True))


def _probit(node: Node, scores: Expr) -> Expr:
    """Return sqrt(2) * erfinv(2 x - 1), by Winitzki's approximation with a = 0.147."""
    y = node.call("subtract", node.call("multiply", scores, 2.0), 1.0)
    rest = node.call("log", node.call("multiply", node.call("subtract", 1.0, y), node.call("add", 1.0, y)))
    first = node.call("add", 2 / (np.pi * 0.147), node.call("multiply", rest, 0.5))
    square = node.call("subtract", node.call("multiply", first, first), node.call("divide", rest, 0.147))
    root = node.call("sqrt", node.call("subtract", node.call("sqrt", square), first))
    return node.call("multiply", node.call("sign", y), node.call("multiply", root, 2.0**0.5))


_TRANSFORMS: dict[str, Callable[[Node, Expr], Expr]] = {
    "NONE": lambda _, scores: scores,
    "LOGISTIC": lambda node, scores: node.call("sigmoid", scores),
    "SOFTMAX": lambda node, scores: node.call("nn.softmax", scores, axis=1),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def _scores(node: Node, rows: int) -> Expr:
    """Return inputs times coefficients plus intercepts."""
    x = node.cast(node.input(0), "float32")
    coefficients = np.asarray(node.reals("coefficients"), np.float32)
    intercepts = np.asarray(node.reals("intercepts", (0.0,) * rows), np.float32)
    if len(shape_of(x)) != 2 or rows < 1 or coefficients.size != rows * shape_of(x)[1] or intercepts.size != rows:
        node.wrong(f"{coefficients.size} coefficients and {intercepts.size} intercepts do not fit {shape_of(x)}")
    product = node.call("nn.dense", x, node.constant(coefficients.reshape(rows, -1), "float32"), units=rows)
    return node.call("nn.bias_add", product, node.constant(intercepts, dtype_of(product)), axis=1)


@importer("Binarizer", domain=ML)
def _binarizer(node: Node) -> Expr:
    return node.cast(node.call("greater", node.input(0), node.real("threshold", 0.0)), node.dtype(0))


@importer("Imputer", domain=ML)
def _imputer(node: Node) -> Expr:
    x = node.input(0)
    if is_float(x):
        values, replaced = node.reals("imputed_value_floats"), node.real("replaced_value_float", 0.0)
    else:
        values, replaced = node.integers("imputed_value_int64s"), node.integer("replaced_value_int64", 0)
    features = shape_of(x)[-1] if shape_of(x) else 1
    if len(values) not in (1, features):
        node.wrong(f"{len(values)} values do not fit {features} features")
    is_missing = node.call("isnan", x) if np.isnan(replaced) else node.call("equal", x, replaced)
    return node.call("where", is_missing, node.constant(np.asarray(values), dtype_of(x)), x)


@importer("OneHotEncoder", domain=ML, ignores=("zeros",))
def _one_hot_encoder(node: Node) -> Expr:
    """Encode categories; an unknown category becomes a row of zeros, where ONNX Runtime raises an error if zeros=0."""
    if node.given("cats_strings"):
        node.unsupported("with categories that are strings is not supported", "Train with integer categories")
    categories = node.constant(np.asarray(node.integers("cats_int64s")), "int64")
    x = node.cast(node.input(0), "int64")
    return node.cast(node.call("equal", node.reshape(x, (*shape_of(x), 1)), categories), "float32")


@importer("LabelEncoder", domain=ML)
def _label_encoder(node: Node) -> Expr:
    keys, values = _column(node, "keys"), _column(node, "values")
    if keys.size != values.size or not keys.size:
        node.wrong(f"{keys.size} keys and {values.size} values do not fit")
    node.attribute("default_string")
    whole, real = node.integer("default_int64", -1), node.real("default_float", -0.0)
    default = np.asarray(real if values.dtype.kind == "f" else whole, values.dtype)  # result for unknown keys
    if node.given("default_tensor"):
        default = np.asarray(node.attribute("default_tensor")).reshape(())
    x = node.input(0)
    if is_float(x) != (keys.dtype.kind == "f"):
        node.wrong(f"keys of {keys.dtype} do not fit an input of {dtype_of(x)}")
    column = node.reshape(x, (*shape_of(x), 1))
    table = node.constant(keys, dtype_of(x))
    hits = node.call("equal", column, table)
    if node.opset >= 4 and keys.dtype.kind == "f" and np.isnan(keys).any():  # since opset 4, NaN equals NaN
        both_nan = node.call("logical_and", node.call("isnan", column), node.call("isnan", table))
        hits = node.call("logical_or", hits, both_nan)
    last = {"axis": (len(shape_of(x)),), "keepdims": False}
    place, known = node.call("argmax", node.cast(hits, "uint8"), **last), node.call("any", hits, **last)
    found = node.call("take", node.constant(values, str(values.dtype)), place, axis=0)
    return node.call("where", known, found, node.constant(default, str(values.dtype)))


def _column(node: Node, kind: str) -> Array:
    if node.given(f"{kind}_strings"):
        node.unsupported(f"with {kind} that are strings is not supported", "Encode the strings outside of the model")
    if node.given(f"{kind}_tensor"):
        return np.asarray(node.attribute(f"{kind}_tensor")).reshape(-1)
    if node.given(f"{kind}_floats"):
        return np.asarray(node.reals(f"{kind}_floats"), np.float32)
    return np.asarray(node.integers(f"{kind}_int64s"), np.int64)


@importer("ZipMap", domain=ML)
def _zip_map(node: Node) -> Expr:
    """Return the scores unchanged: columns in label order instead of maps from label to score."""
    if node.given("classlabels_strings"):
        step = "Convert the scikit-learn model with options={'zipmap': False}"
        node.unsupported("with labels that are strings is not supported", step)
    labels, scores = node.integers("classlabels_int64s"), node.input(0)
    if len(shape_of(scores)) != 2 or shape_of(scores)[1] != len(labels):
        node.wrong(f"{len(labels)} labels do not fit scores of shape {shape_of(scores)}")
    return scores


@importer("FeatureVectorizer", domain=ML)
def _feature_vectorizer(node: Node) -> Expr:
    sizes = node.integers("inputdimensions")
    parts = [node.cast(part, "float32") for part in node.all_inputs()]
    parts = [part if len(shape_of(part)) == 2 else node.reshape(part, (1, shape_of(part)[0])) for part in parts]
    if [shape_of(part)[1] for part in parts] != list(sizes):
        node.wrong(f"inputdimensions {sizes} do not fit the inputs")
    return node.concatenate(parts, 1)


@importer("SVMRegressor", domain=ML)
def _svm_regressor(node: Node) -> Expr:
    x = node.cast(node.input(0), "float32")
    if len(shape_of(x)) != 2:
        node.wrong(f"expected rows of features, got data of shape {shape_of(x)}")
    vectors = node.integer("n_supports", 0)
    coefficients = np.asarray(node.reals("coefficients"), np.float32)
    rho = node.reals("rho", (0.0,))
    if vectors:
        support = np.asarray(node.reals("support_vectors"), np.float32)
        if support.size != vectors * shape_of(x)[1] or coefficients.size != vectors or not rho:
            node.wrong(f"{support.size} numbers of {vectors} support vectors do not fit {shape_of(x)[1]} features")
        similar = _kernel(node, x, support.reshape(vectors, -1))
    else:
        node.reals("support_vectors", ()), node.string("kernel_type", "LINEAR"), node.reals("kernel_params", ())
        if coefficients.size != shape_of(x)[1] or not rho:
            node.wrong(f"{coefficients.size} coefficients do not fit {shape_of(x)[1]} features")
        similar = x
    product = node.call("nn.dense", similar, node.constant(coefficients.reshape(1, -1), "float32"), units=1)
    score = node.call("add", product, rho[0])
    if node.integer("one_class", 0):
        return node.call("where", node.call("greater", score, 0.0), node.like(1.0, score), node.like(-1.0, score))
    return transformed(node, score, node.string("post_transform", "NONE"))


@importer("SVMClassifier", domain=ML)
def _svm_classifier(node: Node) -> list[Expr]:
    labels = labels_of(node, "classlabels_ints")
    x = node.cast(node.input(0), "float32")
    if len(shape_of(x)) != 2 or len(labels) < 2:
        node.wrong(f"data of shape {shape_of(x)} and {len(labels)} labels do not fit")
    transform = node.string("post_transform", "NONE")
    sizes = node.integers("vectors_per_class", ())
    if not any(sizes):
        return _planes(node, x, labels, transform)
    duels = _duels(node, x, len(labels), sizes)
    picked = label_of(node, labels, _votes(node, duels, len(labels)))
    if node.given("prob_a"):
        return [picked, transformed(node, _probabilities(node, duels), transform)]
    if len(labels) > 2:
        return [picked, transformed(node, duels, transform)]
    if transform != "NONE":
        node.unsupported(f"of two classes with post_transform {transform} is not supported", "Use NONE")
    return [picked, node.concatenate([node.call("negative", duels), duels], 1)]


def _planes(node: Node, x: Expr, labels: Array, transform: str) -> list[Expr]:
    """Return the label and scores of a linear classifier, with one hyperplane per class."""
    coefficients, rho = np.asarray(node.reals("coefficients"), np.float32), node.reals("rho")
    node.attribute("kernel_type"), node.attribute("kernel_params"), node.attribute("support_vectors")
    if coefficients.size != len(labels) * shape_of(x)[1] or not rho:
        node.wrong(f"{coefficients.size} coefficients do not fit {len(labels)} classes of {shape_of(x)[1]} features")
    weight = node.constant(coefficients.reshape(len(labels), -1), "float32")
    scores = node.call("add", node.call("nn.dense", x, weight, units=len(labels)), rho[0])
    return [label_of(node, labels, scores), transformed(node, scores, transform)]


def _duels(node: Node, x: Expr, classes: int, sizes: Sequence[int]) -> Expr:
    """Return the scores (rows, pairs) of each pair of classes; positive if the first class wins."""
    # a support vector has one coefficient per other class; that of a pair is in the row of the other class
    vectors, pairs = sum(sizes), list(combinations(range(classes), 2))
    support = np.asarray(node.reals("support_vectors"), np.float32)
    coefficients, rho = np.asarray(node.reals("coefficients"), np.float32), node.reals("rho")
    fits = len(sizes) == classes and min(sizes) >= 0 and support.size == vectors * shape_of(x)[1]
    if not fits or coefficients.size != (classes - 1) * vectors or len(rho) != len(pairs):
        node.wrong(f"{vectors} support vectors, {coefficients.size} coefficients and {len(rho)} rho do not fit")
    table = coefficients.reshape(classes - 1, vectors)
    ends = np.cumsum((0, *sizes))
    weights = np.zeros((len(pairs), vectors), np.float32)
    for row, (first, second) in zip(weights, pairs, strict=True):
        for one, other in ((first, second - 1), (second, first)):
            own = slice(ends[one], ends[one + 1])
            row[own] = table[other, own]
    similar = _kernel(node, x, support.reshape(vectors, -1))
    product = node.call("nn.dense", similar, node.constant(weights, "float32"), units=len(pairs))
    return node.call("add", product, node.constant(np.asarray(rho), "float32"))


def _votes(node: Node, duels: Expr, classes: int) -> Expr:
    """Return the number of pairs that each class wins."""
    pairs = list(combinations(range(classes), 2))
    table, lost = np.zeros((classes, len(pairs)), np.float32), np.zeros(classes, np.float32)
    for index, (first, second) in enumerate(pairs):
        table[first, index], table[second, index] = 1, -1
        lost[second] += 1
    wins = node.cast(node.call("greater", duels, 0.0), "float32")
    won = node.call("nn.dense", wins, node.constant(table, "float32"), units=classes)
    return node.call("add", won, node.constant(lost, "float32"))


def _probabilities(node: Node, duels: Expr) -> Expr:
    """Return class probabilities by Platt scaling of each pair."""
    slope, offset = node.reals("prob_a"), node.reals("prob_b")
    pairs = shape_of(duels)[1]
    if not len(slope) == len(offset) == pairs:
        node.wrong(f"{len(slope)} prob_a and {len(offset)} prob_b do not fit {pairs} pairs of classes")
    scaled = node.call("multiply", duels, node.constant(np.asarray(slope), "float32"))
    scaled = node.call("add", scaled, node.constant(np.asarray(offset), "float32"))
    likely = node.call("subtract", 1.0, node.call("sigmoid", scaled))
    return node.call("ml.pairwise_coupling", node.call("clip", likely, a_min=1e-7, a_max=1 - 1e-7))


def _kernel(node: Node, x: Expr, support: Array) -> Expr:
    """Return the kernel values of each row (rows, features) with each support vector."""
    kind = node.string("kernel_type", "LINEAR")
    gamma, offset, degree = (*node.reals("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    vectors = node.constant(support, "float32")
    if kind == "RBF":
        return node.call("exp", node.call("multiply", _squared_distances(node, x, vectors), -gamma))
    product = node.call("nn.dense", x, vectors, units=len(support))
    if kind == "LINEAR":
        return product
    scaled = node.call("add", node.call("multiply", product, gamma), offset)
    if kind == "POLY":
        return node.call("power", scaled, degree)
    if kind != "SIGMOID":
        node.wrong(f"unknown kernel_type '{kind}'")
    return node.call("tanh", scaled)


@importer("CDist", domain=MICROSOFT)
def _distances(node: Node) -> Expr:
    """Return the distances between rows of two matrices. skl2onnx emits this operator on request."""
    first, second = node.shape(0), node.shape(1)
    metric = node.string("metric", "sqeuclidean")
    if len(first) != 2 or len(second) != 2 or first[1] != second[1] or metric not in ("euclidean", "sqeuclidean"):
        node.wrong(f"unknown distance '{metric}' between rows of {first} and {second}")
    squares = _squared_distances(node, node.input(0), node.input(1))
    return squares if metric == "sqeuclidean" else node.call("sqrt", squares)


def _squared_distances(node: Node, x: Expr, others: Expr) -> Expr:
    rows, features = shape_of(x)
    apart = node.call("subtract", node.reshape(x, (rows, 1, features)), others)
    return node.call("sum", node.call("multiply", apart, apart), axis=(2,), keepdims=False)


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
    # the result has max(ngram_indexes) + 1 columns, so a small file can declare a huge result
    if not indexes or not 0 <= min(indexes) <= max(indexes) < 1 << 24:
        node.wrong("expected ngram_indexes from 0 to 2^24")
    columns, places = max(indexes) + 1, list(indexes)
    if weights and len(weights) != len(indexes):
        node.wrong(f"{len(weights)} weights do not fit {len(indexes)} ngram_indexes")
    counts = _counts(node, _grams(node, indexes), columns)
    if mode == "IDF":
        counts = node.cast(node.call("greater", counts, 0), "float32")
    if weights and mode != "TF":  # weights are per n-gram of the pool, applied per column
        cost.require("constants", 4 * columns, node.name)
        by_column, given = np.zeros(columns, np.float32), np.asarray(weights, np.float32)
        by_column[places] = given
        if (by_column[places] != given).any():
            node.unsupported("with runs of different weights in one column is not supported")
        counts = node.call("multiply", counts, node.constant(by_column, "float32"))
    return counts if len(shape) == 2 else node.reshape(counts, (columns,))


def _grams(node: Node, indexes: Sequence[int]) -> dict[tuple[int, ...], int]:
    """Return the column of each n-gram."""
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
            node.wrong(f"{end - start} tokens of the pool do not divide into runs of {size}")
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
    # the trie that ``ml.ngram_counts`` searches, its nodes in breadth-first order
    children: dict[tuple[int, ...], set[int]] = {(): set()}
    for gram in grams:
        for size in range(1, len(gram) + 1):
            children.setdefault(gram[:size], set())
            children[gram[: size - 1]].add(gram[size - 1])
    order: list[tuple[int, ...]] = [()]
    first, key, column = [0], [], []
    for path in order:  # grows during the iteration
        for token in sorted(children[path]):
            order.append((*path, token))
            key.append(token)
            column.append(grams.get((*path, token), -1))
        first.append(len(key))
    tables = node.constant(first, "int32"), node.constant(key, "int64"), node.constant(column, "int32")
    tokens = node.reshape(node.input(0), (rows, length))
    return node.call("ml.ngram_counts", tokens, *tables, columns=columns, longest=max(map(len, grams)), skips=skips)
