"""The steps of gradient descent, for models that carry on learning where they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr

TRAINING = "ai.onnx.preview.training"


@importer("Adagrad", domain=TRAINING)
def _adagrad(node: Node) -> list[Expr]:
    epsilon = node.real("epsilon", 1e-6)
    decay = node.call("multiply", _steps(node), node.like(node.real("decay_factor", 0.0), node.input(0)))
    rate = node.call("divide", node.input(0), node.call("add", decay, node.like(1.0, decay)))

    def step(x: Expr, gradient: Expr, squares: Expr) -> Sequence[Expr]:
        new = node.call("add", squares, node.call("multiply", gradient, gradient))
        root = node.call("add", node.call("sqrt", new), node.like(epsilon, new))
        change = node.call("divide", node.call("multiply", _as(node, rate, x), gradient), root)
        return node.call("subtract", x, change), new

    return _each(node, 3, step)


@importer("Adam", domain=TRAINING)
def _adam(node: Node) -> list[Expr]:
    alpha, beta, epsilon = node.real("alpha", 0.9), node.real("beta", 0.999), node.real("epsilon", 1e-6)
    after = node.real("norm_coefficient_post", 0.0)
    rate, steps = node.input(0), _steps(node)
    one = node.like(1.0, rate)
    first, second = (
        node.call("subtract", one, node.call("power", node.like(factor, rate), steps)) for factor in (alpha, beta)
    )
    corrected = node.call("divide", node.call("multiply", rate, node.call("sqrt", second)), first)
    rate = node.call("where", _is_later(node), corrected, rate)

    def step(x: Expr, gradient: Expr, mean: Expr, squares: Expr) -> Sequence[Expr]:
        new_mean = _mixed(node, mean, gradient, alpha, 1.0 - alpha)
        new_squares = _mixed(node, squares, node.call("multiply", gradient, gradient), beta, 1.0 - beta)
        root = node.call("add", node.call("sqrt", new_squares), node.like(epsilon, x))
        change = node.call("multiply", _as(node, rate, x), node.call("divide", new_mean, root))
        moved = node.call("subtract", x, change)
        if after:
            moved = node.call("multiply", moved, node.like(1.0 - after, x))
        return moved, new_mean, new_squares

    return _each(node, 4, step)


@importer("Momentum", domain=TRAINING)
def _momentum(node: Node) -> list[Expr]:
    alpha, beta, mode = node.real("alpha"), node.real("beta"), node.string("mode")
    if mode not in ("standard", "nesterov"):
        node.wrong(f"unknown mode '{mode}'; known: nesterov, standard")
    rate = node.input(0)
    part = node.call("where", _is_later(node), node.like(beta, rate), node.like(1.0, rate))

    def step(x: Expr, gradient: Expr, momentum: Expr) -> Sequence[Expr]:
        scaled = node.call("multiply", _as(node, part, x), gradient)
        new = node.call("add", node.call("multiply", momentum, node.like(alpha, x)), scaled)
        direction = new
        if mode == "nesterov":
            direction = node.call("add", gradient, node.call("multiply", new, node.like(alpha, x)))
        return node.call("subtract", x, node.call("multiply", _as(node, rate, x), direction)), new

    return _each(node, 3, step)


def _steps(node: Node) -> Expr:
    """Return how many steps were done, in the dtype of the learning rate."""
    return node.cast(node.input(1), node.dtype(0))


def _is_later(node: Node) -> Expr:
    """Return whether this is not the first step."""
    return node.call("greater", node.input(1), node.like(0, node.input(1)))


def _each(node: Node, kinds: int, step: Callable[..., Sequence[Expr]]) -> list[Expr]:
    """Return new values of all tensors, those of one kind together: as inputs have them behind the first two.

    `step` takes a tensor, its gradient with that of the regularization, and what is kept of it.
    """
    if node.shape(0) not in ((), (1,)) or node.shape(1) not in ((), (1,)):
        node.wrong(f"a learning rate of shape {node.shape(0)} and a count of shape {node.shape(1)} are no two numbers")
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
            gradient = node.call("add", node.call("multiply", x, node.like(norm, x)), gradient)
        results.append(step(x, gradient, *kept))
    return [result for kind in zip(*results, strict=True) for result in kind]


def _mixed(node: Node, old: Expr, new: Expr, keep: float, take: float) -> Expr:
    kept, taken = (node.call("multiply", item, node.like(part, item)) for item, part in ((old, keep), (new, take)))
    return node.call("add", kept, taken)


def _as(node: Node, number: Expr, like: Expr) -> Expr:
    """Return a number of one element in the dtype of a tensor."""
    return node.cast(node.reshape(number, ()), dtype_of(like))
