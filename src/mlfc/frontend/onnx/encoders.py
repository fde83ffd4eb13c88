"""ONNX's classical machine learning: what turns values into others before a model sees them, or behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of
from mlfc.frontend.onnx.table import ML, importer
from mlfc.relay.ir import Expr

Array = npt.NDArray[Any]


@importer("Binarizer", domain=ML)
def _binarizer(node: Node) -> Expr:
    x = node.input(0)
    return node.cast(node.call("greater", x, node.like(node.real("threshold", 0.0), x)), dtype_of(x))


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
    is_missing = node.call("isnan", x) if np.isnan(replaced) else node.call("equal", x, node.like(replaced, x))
    return node.call("where", is_missing, node.constant(np.asarray(values), dtype_of(x)), x)


@importer("OneHotEncoder", domain=ML, ignores=("zeros",))
def _one_hot_encoder(node: Node) -> Expr:
    """Return a row of zeros for an unknown category; with zeros=0 ONNX Runtime stops there."""
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
    default = _default(node, values)
    x = node.input(0)
    if is_float(x) != (keys.dtype.kind == "f"):
        node.wrong(f"keys of {keys.dtype} do not fit an input of {dtype_of(x)}")
    column = node.reshape(x, (*shape_of(x), 1))
    table = node.constant(keys, dtype_of(x))
    hits = node.call("equal", column, table)
    if node.opset >= 4 and keys.dtype.kind == "f" and np.isnan(keys).any():  # since then, NaN is a key like others
        hits = node.call(
            "logical_or", hits, node.call("logical_and", node.call("isnan", column), node.call("isnan", table))
        )
    last = len(shape_of(x))
    place = node.call("argmax", node.cast(hits, "uint8"), axis=(last,), keepdims=False)
    known = node.call("any", hits, axis=(last,), keepdims=False)
    found = node.call("take", node.constant(values, str(values.dtype)), place, axis=0)
    return node.call("where", known, found, node.constant(default, str(values.dtype)))


def _column(node: Node, kind: str) -> Array:
    """Return the keys or values of an encoder."""
    if node.given(f"{kind}_strings"):
        node.unsupported(f"with {kind} that are strings is not supported", "Encode the strings outside of the model")
    if node.given(f"{kind}_tensor"):
        return np.asarray(node.attribute(f"{kind}_tensor")).reshape(-1)
    if node.given(f"{kind}_floats"):
        return np.asarray(node.reals(f"{kind}_floats"), np.float32)
    return np.asarray(node.integers(f"{kind}_int64s"), np.int64)


def _default(node: Node, values: Array) -> Array:
    """Return the value of what no key equals."""
    node.attribute("default_string")
    whole, real = node.integer("default_int64", -1), node.real("default_float", -0.0)
    if node.given("default_tensor"):
        return np.asarray(node.attribute("default_tensor")).reshape(())
    return np.asarray(real if values.dtype.kind == "f" else whole, values.dtype)


@importer("ZipMap", domain=ML)
def _zip_map(node: Node) -> Expr:
    """Return the scores as they are: columns in the order of the labels instead of maps from label to score."""
    if node.given("classlabels_strings"):
        node.unsupported(
            "with labels that are strings is not supported",
            "Convert the scikit-learn model with options={'zipmap': False}",
        )
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
