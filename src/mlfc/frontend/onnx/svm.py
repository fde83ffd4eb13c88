"""Support vector machines of ONNX's classical machine learning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.ml import labels_of, transformed
from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.table import ML, importer
from mlfc.relay.ir import Expr

Array = npt.NDArray[Any]


@importer("SVMRegressor", domain=ML)
def _svm_regressor(node: Node) -> Expr:
    x = node.cast(node.input(0), "float32")
    if len(shape_of(x)) != 2:
        node.wrong(f"data of shape {shape_of(x)} are no rows of features")
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
    score = node.call("add", product, node.constant(np.float32(rho[0]), "float32"))
    if node.integer("one_class", 0):
        is_inside = node.call("greater", score, node.like(0.0, score))
        return node.call("where", is_inside, node.like(1.0, score), node.like(-1.0, score))
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
        return _linear_classifier(node, x, labels, transform)
    duels = _duels(node, x, len(labels), sizes)
    best = node.call("argmax", _votes(node, duels, len(labels)), axis=(1,), keepdims=False)
    picked = node.call("take", node.constant(labels, "int64"), best, axis=0)
    if node.given("prob_a"):
        return [picked, transformed(node, _probabilities(node, duels), transform)]
    if len(labels) > 2:
        return [picked, transformed(node, duels, transform)]
    if transform != "NONE":
        node.unsupported(f"of two classes with post_transform {transform} is not supported", "Use NONE")
    return [picked, node.concatenate([node.call("negative", duels), duels], 1)]


def _linear_classifier(node: Node, x: Expr, labels: Array, transform: str) -> list[Expr]:
    """Return label and scores of classes that have a plane each."""
    coefficients, rho = np.asarray(node.reals("coefficients"), np.float32), node.reals("rho")
    node.attribute("kernel_type"), node.attribute("kernel_params"), node.attribute("support_vectors")
    if coefficients.size != len(labels) * shape_of(x)[1] or not rho:
        node.wrong(f"{coefficients.size} coefficients do not fit {len(labels)} classes of {shape_of(x)[1]} features")
    weight = node.constant(coefficients.reshape(len(labels), -1), "float32")
    scores = node.call("nn.dense", x, weight, units=len(labels))
    scores = node.call("add", scores, node.constant(np.float32(rho[0]), "float32"))
    best = node.call("argmax", scores, axis=(1,), keepdims=False)
    picked = node.call("take", node.constant(labels, "int64"), best, axis=0)
    return [picked, transformed(node, scores, transform)]


def _duels(node: Node, x: Expr, classes: int, sizes: Sequence[int]) -> Expr:
    """Return the scores (rows, pairs) of each pair of classes, above 0 where the first of them wins.

    A support vector has a coefficient for each class but its own; those of a pair are in the row of the other class.
    """
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
    """Return how many pairs each class wins."""
    pairs = list(combinations(range(classes), 2))
    table, lost = np.zeros((classes, len(pairs)), np.float32), np.zeros(classes, np.float32)
    for index, (first, second) in enumerate(pairs):
        table[first, index], table[second, index] = 1, -1
        lost[second] += 1
    wins = node.cast(node.call("greater", duels, node.like(0.0, duels)), "float32")
    return node.call(
        "add",
        node.call("nn.dense", wins, node.constant(table, "float32"), units=classes),
        node.constant(lost, "float32"),
    )


def _probabilities(node: Node, duels: Expr) -> Expr:
    """Return the probabilities of the classes by Platt's scaling of each pair."""
    slope, offset = node.reals("prob_a"), node.reals("prob_b")
    pairs = shape_of(duels)[1]
    if not len(slope) == len(offset) == pairs:
        node.wrong(f"{len(slope)} prob_a and {len(offset)} prob_b do not fit {pairs} pairs of classes")
    scaled = node.call("multiply", duels, node.constant(np.asarray(slope), "float32"))
    scaled = node.call("add", scaled, node.constant(np.asarray(offset), "float32"))
    likely = node.call("subtract", node.like(1.0, scaled), node.call("sigmoid", scaled))
    return node.call("ml.pairwise_coupling", node.call("clip", likely, a_min=1e-7, a_max=1 - 1e-7))


def _kernel(node: Node, x: Expr, support: Array) -> Expr:
    """Return how similar each row (rows, features) is to each support vector."""
    kind = node.string("kernel_type", "LINEAR")
    gamma, offset, degree = (*node.reals("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    vectors = node.constant(support, "float32")
    if kind == "RBF":
        rows, features = shape_of(x)
        apart = node.call("subtract", node.reshape(x, (rows, 1, features)), vectors)
        distance = node.call("sum", node.call("multiply", apart, apart), axis=(2,), keepdims=False)
        return node.call("exp", node.call("multiply", distance, node.like(-gamma, distance)))
    product = node.call("nn.dense", x, vectors, units=len(support))
    if kind == "LINEAR":
        return product
    scaled = node.call("multiply", product, node.like(gamma, product))
    scaled = node.call("add", scaled, node.like(offset, scaled))
    if kind == "POLY":
        return node.call("power", scaled, node.like(degree, scaled))
    if kind != "SIGMOID":
        node.wrong(f"unknown kernel_type '{kind}'")
    return node.call("tanh", scaled)
