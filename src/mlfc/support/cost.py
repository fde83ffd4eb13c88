"""What making one model may cost: bytes of constants, operators, steps of computing constants, bytes of workspace.

A model of a kilobyte can ask for gigabytes. What grows from a file is counted here, in a context rather than an
argument because rules of operators receive only their operands. No clock is read, so results do not depend on it.
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
    """How much of a resource one model may use."""

    subject: str  # the resource with the verb of the message
    unit: str
    base: int  # what every model may use
    per_byte: int = 0  # more for each byte of its file
    per_node: int = 0  # more for each tensor that a node in it reads or makes


_UNLIMITED = 1 << 62
STATEMENT_STEPS = 4096
"""Steps of a statement that is interpreted by itself: numpy computes that many elements in its time."""

LIMITS: Mapping[str, Limit] = {
    "constants": Limit("constants made from the model exceed", "bytes", 64 << 20, per_byte=32),
    "operators": Limit("the model's graph exceeds", "operators", 5_000, per_node=8),
    "steps": Limit("the work on constants and memory exceeds", "steps", 1 << 28, per_byte=1 << 10, per_node=1 << 15),
    "external": Limit("tensors in files beside the model exceed", "bytes", 0, per_byte=2),
    "workspace": Limit("the workspace exceeds", "bytes", 4 << 30),
}


@dataclass
class Cost:
    """What one import or build has used so far."""

    given_bytes: int  # of the model's file
    given_nodes: int  # tensors that the nodes in it read and make
    factor: float = 1.0  # multiplies the limits
    used: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0))  # by the keys of `LIMITS`
    files: set[str] = field(default_factory=set)  # beside the model's, among the given bytes

    def limit(self, resource: str) -> int:
        """Return how much may be used of a resource."""
        kind = LIMITS[resource]
        limit = self.factor * (kind.base + kind.per_byte * self.given_bytes + kind.per_node * self.given_nodes)
        return int(min(limit, _UNLIMITED))

    def require(self, resource: str, amount: int, place: str | None) -> None:
        """Raise LimitError if `amount` more would be too much."""
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
    """Count what happens inside against the limits of a model; raise OptionError if the factor is not positive."""
    if not (isinstance(factor, (int, float)) and 0 < factor < math.inf):
        raise OptionError(f"expected a positive number as the factor of the limits, got {factor!r}")
    cost = Cost(given_bytes, given_nodes, factor)
    token = _CURRENT.set(cost)
    try:
        yield cost
    finally:
        _CURRENT.reset(token)


@contextmanager
def apart() -> Iterator[None]:
    """Count what happens inside separately: a trial with the limits of the model that it is part of."""
    cost = _CURRENT.get()
    token = _CURRENT.set(None if cost is None else Cost(cost.given_bytes, cost.given_nodes, cost.factor))
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def undone(error: type[Exception]) -> Iterator[None]:
    """Count nothing of what happens inside if it ends in such an error: it is done anew."""
    cost = _CURRENT.get()
    used = None if cost is None else dict(cost.used)
    try:
        yield
    except error:
        if cost is not None and used is not None:
            cost.used = used
        raise


def give_nodes(count: int) -> None:
    """Count the tensors that the nodes of the model's file read and make; they raise its limits."""
    cost = _CURRENT.get()
    if cost is not None:
        cost.given_nodes += count


def give_file(path: str, nbytes: int) -> None:
    """Count a file beside the model's, however often it is read; it raises the model's limits."""
    cost = _CURRENT.get()
    if cost is not None and path not in cost.files:
        cost.files.add(path)
        cost.given_bytes += nbytes


def require(resource: str, amount: int, place: str | None = None) -> None:
    """Raise LimitError if using `amount` more would exceed the limit; for what is about to be allocated."""
    cost = _CURRENT.get()
    if cost is not None:
        cost.require(resource, amount, place)


def spend(resource: str, amount: int, place: str | None = None) -> None:
    """Count `amount` as used; raise LimitError beyond the limit. Outside of `limited`, nothing is counted."""
    cost = _CURRENT.get()
    if cost is not None:
        cost.require(resource, amount, place)
        cost.used[resource] += amount
