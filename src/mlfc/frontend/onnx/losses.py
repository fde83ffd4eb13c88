"""Losses, which models that are trained on carry as outputs."""

from __future__ import annotations

from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr


@importer("NegativeLogLikelihoodLoss")
def _negative_log_likelihood_loss(node: Node) -> Expr:
    return _loss(node, node.input(0))


@importer("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy_loss(node: Node) -> Expr | list[Expr]:
    if node.rank(0) < 2:
        node.wrong(f"scores of shape {node.shape(0)} have no classes")
    logarithms = node.call("nn.log_softmax", node.input(0), axis=1)
    loss = _loss(node, logarithms)
    return [loss, logarithms] if node.wants(1) else loss


def _loss(node: Node, logarithms: Expr) -> Expr:
    """Return the loss of logarithms of probabilities [N, C, ...] and classes [N, ...], weighted by class."""
    shape, classes, weights = shape_of(logarithms), node.input(1), node.optional(2)
    fits = len(shape) >= 2 and node.has_shape(shape_of(classes), (shape[0], *shape[2:]))
    if not fits or is_float(classes):
        node.wrong(f"classes of shape {shape_of(classes)} ({dtype_of(classes)}) do not fit scores of shape {shape}")
    if weights is not None and not node.has_shape(shape_of(weights), (shape[1],)):
        node.wrong(f"weights of shape {shape_of(weights)} do not fit {shape[1]} classes")
    counts = None
    if node.given("ignore_index"):
        counts = node.call("not_equal", classes, node.like(node.integer("ignore_index"), classes))
        classes = node.call("where", counts, classes, node.like(0, classes))
    column = node.reshape(classes, (shape[0], 1, *shape[2:]))
    picked = node.reshape(node.call("gather", logarithms, column, axis=1), shape_of(classes))
    loss = node.call("negative", picked)
    weight = None if weights is None else node.call("take", weights, classes, axis=0)
    if counts is not None:
        one = node.like(1.0, loss) if weight is None else weight
        # a class that is ignored may have a score that is not finite
        loss = node.call("where", counts, loss, node.like(0.0, loss))
        weight = node.call("where", counts, one, node.like(0.0, loss))
    if weight is not None:
        loss = node.call("multiply", loss, weight)
    return _reduced(node, loss, weight)


def _reduced(node: Node, loss: Expr, weight: Expr | None) -> Expr:
    reduction = node.string("reduction", "mean")
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        node.wrong(f"unknown reduction '{reduction}'; known: mean, none, sum")
    axes = tuple(range(len(shape_of(loss))))
    if reduction == "mean" and weight is None:
        return node.call("mean", loss, axis=axes, keepdims=False)
    total = node.call("sum", loss, axis=axes, keepdims=False)
    if reduction == "sum" or weight is None:
        return total
    return node.call("divide", total, node.call("sum", weight, axis=axes, keepdims=False))
