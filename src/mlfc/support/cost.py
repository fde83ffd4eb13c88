"""Resource limits for compiling one model: constant bytes, operators, constant-folding steps, workspace bytes.

A model of a kilobyte can require gigabytes. Resource use is counted in a context rather than an argument, because
operator rules receive only their operands. Limits do not depend on time, so results are reproducible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from mlfc.errors import LimitError, OptionError, Remedy


@dataclass(frozen=True)
class Limit:
    """The limit of a resource for one model."""

    subject: str  # the resource with the verb of the message
    unit: str
    base: int  # for every model
    per_byte: int = 0  # in addition, per byte of its file
    per_node: int = 0  # in addition, per tensor that a node reads or produces


_UNLIMITED = 1 << 62
STATEMENT_STEPS = 4096
"""Cost of one interpreted statement, in steps: NumPy computes that many elements in the same time."""

LIMITS: Mapping[str, Limit] = {
    "constants": Limit("constants made from the model exceed", "bytes", 64 << 20, per_byte=32),
    "operators": Limit("the model's graph exceeds", "operators", 5_000, per_node=8),
    "steps": Limit("the work on constants and memory exceeds", "steps", 1 << 28, per_byte=1 << 10, per_node=1 << 15),
    "external": Limit("tensors in files beside the model exceed", "bytes", 0, per_byte=2),
    "workspace": Limit("the workspace exceeds", "bytes", 4 << 30),
}


@dataclass
class Cost:
    """The resources that one import or build has used so far."""

    given_bytes: int  # of the model's file
    given_nodes: int  # tensors that its nodes read and produce
    factor: float = 1.0  # multiplies the limits
    used: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0))  # by the keys of `LIMITS`
    files: set[str] = field(default_factory=set)  # external files that are included in `given_bytes`

    def limit(self, resource: str) -> int:
        """Return the limit of a resource."""
        kind = LIMITS[resource]
        limit = self.factor * (kind.base + kind.per_byte * self.given_bytes + kind.per_node * self.given_nodes)
        return int(min(limit, _UNLIMITED))

    def require(self, resource: str, amount: int, place: str | None) -> None:
        """Raise LimitError if using `amount` more would exceed the limit."""
        limit, total = self.limit(resource), self.used[resource] + amount
        if total > limit:
            kind = LIMITS[resource]
            remedy = Remedy("--limit-factor", str(math.ceil(2 * self.factor * total / max(limit, 1))))
            raise LimitError(
                f"{kind.subject} {limit:,} {kind.unit} by {total - limit:,}",
                place=place,
                next_step=f"If you trust the model, raise the limits: {remedy}",
                remedies=[remedy],
            )


_CURRENT: ContextVar[Cost | None] = ContextVar("cost", default=None)


@contextmanager
def limited(given_bytes: int, given_nodes: int, factor: float = 1.0) -> Iterator[Cost]:
    """Count resource use in the block against a model's limits; raise OptionError if `factor` is not positive."""
    if not (isinstance(factor, (int, float)) and 0 < factor < math.inf):
        raise OptionError(f"expected a positive number as the limit factor, got {factor!r}")
    cost = Cost(given_bytes, given_nodes, factor)
    token = _CURRENT.set(cost)
    try:
        yield cost
    finally:
        _CURRENT.reset(token)


@contextmanager
def apart() -> Iterator[None]:
    """Count resource use in the block separately, with the limits of the current model; for trials."""
    cost = _CURRENT.get()
    token = _CURRENT.set(None if cost is None else Cost(cost.given_bytes, cost.given_nodes, cost.factor))
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def undone(error: type[Exception]) -> Iterator[None]:
    """Discard the resource use of the block if it raises `error`, because the work is repeated."""
    cost = _CURRENT.get()
    used = None if cost is None else dict(cost.used)
    try:
        yield
    except error:
        if cost is not None and used is not None:
            cost.used = used
        raise


def give_nodes(count: int) -> None:
    """Add tensors that the nodes of the model's file read and produce; they raise its limits."""
    cost = _CURRENT.get()
    if cost is not None:
        cost.given_nodes += count


def give_file(path: str, nbytes: int) -> None:
    """Add an external file of the model, once per path; it raises the model's limits."""
    cost = _CURRENT.get()
    if cost is not None and path not in cost.files:
        cost.files.add(path)
        cost.given_bytes += nbytes


def require(resource: str, amount: int, place: str | None = None) -> None:
    """Raise LimitError if using `amount` more would exceed the limit; call before allocating."""
    cost = _CURRENT.get()
    if cost is not None:
        cost.require(resource, amount, place)


def spend(resource: str, amount: int, place: str | None = None) -> None:
    """Count `amount` as used; raise LimitError beyond the limit. No effect outside of `limited`."""
    cost = _CURRENT.get()
    if cost is not None:
        cost.require(resource, amount, place)
        cost.used[resource] += amount
