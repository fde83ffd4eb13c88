"""Training operators: losses and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr

TRAINING = "ai.onnx.preview.training"


@importer("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def _loss(node: Node) -> Expr | list[Expr]:
    """Return the loss for log-probabilities [N, C, ...] and classes [N, ...], weighted by class."""
    logarithms, shape, classes, weights = node.input(0), node.shape(0), node.input(1), node.optional(2)
    if node.operator == "SoftmaxCrossEntropyLoss":
        if node.rank(0) < 2:
            node.wrong(f"scores of shape {shape} have no classes")
        logarithms = node.call("nn.log_softmax", logarithms, axis=1)
    fits = len(shape) >= 2 and node.has_shape(shape_of(classes), (shape[0], *shape[2:]))
    if not fits or is_float(classes):
        node.wrong(f"classes of shape {shape_of(classes)} ({dtype_of(classes)}) do not fit scores of shape {shape}")
    if weights is not None and not node.has_shape(shape_of(weights), (shape[1],)):
        node.wrong(f"weights of shape {shape_of(weights)} do not fit {shape[1]} classes")
    counts = None
    if node.given("ignore_index"):
        counts = node.call("not_equal", classes, node.integer("ignore_index"))
        classes = node.call("where", counts, classes, 0)
    column = node.reshape(classes, (shape[0], 1, *shape[2:]))
    picked = node.reshape(node.call("gather", logarithms, column, axis=1), shape_of(classes))
    loss = node.call("negative", picked)
    weight = None if weights is None else node.call("take", weights, classes, axis=0)
    if counts is not None:
        one = node.like(1.0, loss) if weight is None else weight
        # the score of an ignored class may be infinite or NaN
        loss, weight = node.call("where", counts, loss, 0.0), node.call("where", counts, one, node.like(0.0, loss))
    if weight is not None:
        loss = node.call("multiply", loss, weight)
    reduction, every = node.string("reduction", "mean"), {"axis": tuple(range(len(shape) - 1)), "keepdims": False}
    if reduction not in ("mean", "none", "sum"):
        node.wrong(f"unknown reduction '{reduction}'; known: mean, none, sum")
    if reduction != "none":
        loss = node.call("mean" if reduction == "mean" and weight is None else "sum", loss, **every)
    if reduction == "mean" and weight is not None:
        loss = node.call("divide", loss, node.call("sum", weight, **every))
    return [loss, logarithms] if node.wants(1) and node.operator == "SoftmaxCrossEntropyLoss" else loss


@importer("Adagrad", domain=TRAINING)
def _adagrad(node: Node) -> list[Expr]:
    epsilon = node.real("epsilon", 1e-6)
    decay = node.call("multiply", node.cast(node.input(1), node.dtype(0)), node.real("decay_factor", 0.0))
    rate = node.call("divide", node.input(0), node.call("add", decay, 1.0))

    def step(x: Expr, gradient: Expr, squares: Expr) -> Sequence[Expr]:
        new = node.call("add", squares, node.call("multiply", gradient, gradient))
        root = node.call("add", node.call("sqrt", new), epsilon)
        change = node.call("divide", node.call("multiply", _as(node, rate, x), gradient), root)
        return node.call("subtract", x, change), new

    return _each(node, 3, step)


@importer("Adam", domain=TRAINING)
def _adam(node: Node) -> list[Expr]:
    alpha, beta, epsilon = node.real("alpha", 0.9), node.real("beta", 0.999), node.real("epsilon", 1e-6)
    after = node.real("norm_coefficient_post", 0.0)
    rate, steps = node.input(0), node.cast(node.input(1), node.dtype(0))
    powers = (node.call("power", node.like(factor, rate), steps) for factor in (alpha, beta))
    first, second = (node.call("subtract", 1.0, power) for power in powers)
    corrected = node.call("divide", node.call("multiply", rate, node.call("sqrt", second)), first)
    rate = node.call("where", node.call("greater", node.input(1), 0), corrected, rate)

    def mixed(old: Expr, new: Expr, keep: float) -> Expr:
        return node.call("add", node.call("multiply", old, keep), node.call("multiply", new, 1.0 - keep))

    def step(x: Expr, gradient: Expr, mean: Expr, squares: Expr) -> Sequence[Expr]:
        new_mean = mixed(mean, gradient, alpha)
        new_squares = mixed(squares, node.call("multiply", gradient, gradient), beta)
        root = node.call("add", node.call("sqrt", new_squares), epsilon)
        change = node.call("multiply", _as(node, rate, x), node.call("divide", new_mean, root))
        moved = node.call("subtract", x, change)
        return node.call("multiply", moved, 1.0 - after) if after else moved, new_mean, new_squares

    return _each(node, 4, step)


@importer("Momentum", domain=TRAINING)
def _momentum(node: Node) -> list[Expr]:
    alpha, beta, mode = node.real("alpha"), node.real("beta"), node.string("mode")
    if mode not in ("standard", "nesterov"):
        node.wrong(f"unknown mode '{mode}'; known: nesterov, standard")
    rate, is_later = node.input(0), node.call("greater", node.input(1), 0)
    part = node.call("where", is_later, node.like(beta, rate), node.like(1.0, rate))

    def step(x: Expr, gradient: Expr, momentum: Expr) -> Sequence[Expr]:
        scaled = node.call("multiply", _as(node, part, x), gradient)
        new = direction = node.call("add", node.call("multiply", momentum, alpha), scaled)
        if mode == "nesterov":
            direction = node.call("add", gradient, node.call("multiply", new, alpha))
        return node.call("subtract", x, node.call("multiply", _as(node, rate, x), direction)), new

    return _each(node, 3, step)


def _each(node: Node, kinds: int, step: Callable[..., Sequence[Expr]]) -> list[Expr]:
    """Return the new values of all tensors, grouped by kind; `step` updates a tensor from its gradient and state."""
    if node.shape(0) not in ((), (1,)) or node.shape(1) not in ((), (1,)):
        rate, steps = node.shape(0), node.shape(1)
        node.wrong(f"expected scalars, got a learning rate of shape {rate} and a count of shape {steps}")
    rest = node.all_inputs()[2:]
    if not rest or len(rest) % kinds:
        node.wrong(f"{len(rest)} tensors are not {kinds} for each that is trained")
    count = len(rest) // kinds
    norm = node.real("norm_coefficient", 0.0)
    results = []
    for own in zip(*(rest[kind * count : (kind + 1) * count] for kind in range(kinds)), strict=True):
        x, gradient, *kept = own
        dtypes = {dtype_of(item) for item in own}
        if len(dtypes) > 1 or not is_float(x) or not all(node.has_shape(shape_of(item), shape_of(x)) for item in own):
            node.wrong(f"expected {kinds} tensors of one type, got {', '.join(str(item.type) for item in own)}")
        if norm:
            gradient = node.call("add", node.call("multiply", x, norm), gradient)
        results.append(step(x, gradient, *kept))
    return [result for kind in zip(*results, strict=True) for result in kind]


def _as(node: Node, number: Expr, like: Expr) -> Expr:
    """Return a one-element tensor as a scalar of the dtype of `like`."""
    return node.cast(node.reshape(number, ()), dtype_of(like))
