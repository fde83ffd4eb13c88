"""Support vector machines of ONNX's classical machine learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.ml import transformed
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
