"""The operators of ONNX's classical machine learning domain that linear models and MLPs need."""

from __future__ import annotations

import numpy as np

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
    size = node.call("abs", x) if norm != "L2" else node.call("multiply", x, x)
    if norm not in ("MAX", "L1", "L2"):
        node.wrong(f"norm '{norm}' is not known")
    total = node.call("max" if norm == "MAX" else "sum", size, axis=(-1,), keepdims=True)
    return node.call("divide", x, node.call("sqrt", total) if norm == "L2" else total)


@importer("LinearRegressor", domain=ML)
def _linear_regressor(node: Node) -> Expr:
    if node.string("post_transform", "NONE") != "NONE":
        node.unsupported("with a post_transform is not supported", "Do the transformation behind the model")
    return _scores(node, node.integer("targets", 1))


@importer("LinearClassifier", domain=ML, ignores=("multi_class",))
def _linear_classifier(node: Node) -> list[Expr]:
    if node.given("classlabels_strings"):
        node.unsupported("with labels that are strings is not supported", "Train with integer labels")
    labels = np.asarray(node.integers("classlabels_ints"), np.int64)
    rows = len(node.reals("intercepts", (0.0,) * max(1, len(labels))))
    transform = node.string("post_transform", "NONE")
    scores = _scores(node, rows)
    if rows == 1 and len(labels) == 2:
        scores = node.concatenate([node.call("negative", scores), scores], 1)
        transform = "LOGISTIC" if transform == "SOFTMAX" else transform
    if len(labels) != shape_of(scores)[1]:
        node.wrong(f"{len(labels)} labels do not fit {shape_of(scores)[1]} scores")
    best = node.call("argmax", scores, axis=(1,), keepdims=False)
    picked = node.call("take", node.constant(labels, "int64"), best, axis=0)
    if transform == "NONE":
        return [picked, scores]
    if transform not in ("LOGISTIC", "SOFTMAX"):
        node.unsupported(
            f"with post_transform {transform} is not supported", "NONE, LOGISTIC and SOFTMAX are supported"
        )
    activation = node.call("sigmoid", scores) if transform == "LOGISTIC" else node.call("nn.softmax", scores, axis=1)
    return [picked, activation]


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
