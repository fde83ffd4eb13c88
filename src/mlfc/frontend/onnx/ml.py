"""The operators of ONNX's classical machine learning domain that linear models and MLPs need."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.index import wrapped_indices
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.table import ML, importer
from mlfc.relay.ir import Expr


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
    zero = node.call("equal", total, node.like(0.0, total))
    return node.call("divide", x, node.call("where", zero, node.like(1.0, total), divisor))


@importer("LinearRegressor", domain=ML)
def _linear_regressor(node: Node) -> Expr:
    return transformed(node, _scores(node, node.integer("targets", 1)), node.string("post_transform", "NONE"))


@importer("LinearClassifier", domain=ML, ignores=("multi_class",))
def _linear_classifier(node: Node) -> list[Expr]:
    labels = labels_of(node, "classlabels_ints")
    rows = len(node.reals("intercepts", (0.0,) * max(1, len(labels))))
    transform = node.string("post_transform", "NONE")
    scores = _scores(node, rows)
    score = scores
    if rows == 1 and len(labels) == 2:
        scores = node.concatenate([node.call("negative", score), score], 1)
    if len(labels) != shape_of(scores)[1]:
        node.wrong(f"{len(labels)} labels do not fit {shape_of(scores)[1]} scores")
    best = node.call("argmax", scores, axis=(1,), keepdims=False)
    picked = node.call("take", node.constant(labels, "int64"), best, axis=0)
    if rows == 1 and len(labels) == 2 and transform not in ("LOGISTIC", "PROBIT"):  # as ONNX Runtime: a probability
        return [picked, node.concatenate([node.call("subtract", node.like(1.0, score), score), score], 1)]
    return [picked, transformed(node, scores, transform)]


def labels_of(node: Node, attribute: str) -> npt.NDArray[np.int64]:
    """Return the labels of a classifier, which must be integers."""
    if node.given("classlabels_strings"):
        node.unsupported("with labels that are strings is not supported", "Train with integer labels")
    return np.asarray(node.integers(attribute), np.int64)


def transformed(node: Node, scores: Expr, transform: str) -> Expr:
    """Return what a classifier or regressor makes of its scores (rows, classes)."""
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return node.call("sigmoid", scores)
    if transform == "SOFTMAX":
        return node.call("nn.softmax", scores, axis=1)
    if transform == "SOFTMAX_ZERO":
        return _softmax_zero(node, scores)
    if transform == "PROBIT":
        return _probit(node, scores)
    return node.wrong(f"unknown post_transform '{transform}'")


def _softmax_zero(node: Node, scores: Expr) -> Expr:
    """Return softmax in which scores of 0 stay 0."""
    largest = node.call("max", scores, axis=(1,), keepdims=True)
    power = node.call("exp", node.call("subtract", scores, largest))
    is_zero = node.call("less_equal", node.call("abs", scores), node.like(1e-7, scores))
    small = node.call("multiply", scores, node.call("exp", node.call("negative", largest)))
    powers = node.call("where", is_zero, small, power)
    return node.call("divide", powers, node.call("sum", powers, axis=(1,), keepdims=True))


def _probit(node: Node, scores: Expr) -> Expr:
    """Return sqrt(2) times the inverse error function of 2 x - 1, by Winitzki's approximation with a = 0.147."""
    y = node.call("subtract", node.call("multiply", scores, node.like(2.0, scores)), node.like(1.0, scores))
    one = node.like(1.0, y)
    rest = node.call("log", node.call("multiply", node.call("subtract", one, y), node.call("add", one, y)))
    first = node.call("add", node.like(2 / (np.pi * 0.147), y), node.call("multiply", rest, node.like(0.5, y)))
    square = node.call("subtract", node.call("multiply", first, first), node.call("divide", rest, node.like(0.147, y)))
    root = node.call("sqrt", node.call("subtract", node.call("sqrt", square), first))
    return node.call("multiply", node.call("sign", y), node.call("multiply", root, node.like(2.0**0.5, y)))


def _scores(node: Node, rows: int) -> Expr:
    """Return the inputs times the coefficients, plus the intercepts."""
    x = node.cast(node.input(0), "float32")
    coefficients = np.asarray(node.reals("coefficients"), np.float32)
    intercepts = np.asarray(node.reals("intercepts", (0.0,) * rows), np.float32)
    if len(shape_of(x)) != 2 or rows < 1 or coefficients.size != rows * shape_of(x)[1] or intercepts.size != rows:
        node.wrong(f"{coefficients.size} coefficients and {intercepts.size} intercepts do not fit {shape_of(x)}")
    weight = node.constant(coefficients.reshape(rows, -1), "float32")
    product = node.call("nn.dense", x, weight, units=rows)
    return node.call("nn.bias_add", product, node.constant(intercepts, dtype_of(product)), axis=1)
