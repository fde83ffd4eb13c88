"""What was measured of a module's calls, for its page: time or instructions, and differences from a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlfc.library.peaks import Peaks, Roofline
from mlfc.runtime.executors.profile import OperatorTime

MICROSECONDS, INSTRUCTIONS = "us", "instructions"


@dataclass(frozen=True)
class Costs:
    """What each call of a module took, in the order of its operators.

    Attributes
    ----------
    where : str
        What ran it, for people: this machine's processor, or a board.
    unit : str
        MICROSECONDS or INSTRUCTIONS.
    calls : tuple of float
    operators : tuple of OperatorTime
        Of this machine, with whose peaks they are compared.
    peaks : Peaks or None
        Of this machine.
    """

    where: str
    unit: str
    calls: tuple[float, ...]
    operators: tuple[OperatorTime, ...] = ()
    peaks: Peaks | None = None

    @property
    def total(self) -> float:
        """What all calls took together."""
        return sum(self.calls)

    def text(self, cost: float) -> str:
        """Return a cost with its unit."""
        return f"{cost:,.0f} instructions" if self.unit == INSTRUCTIONS else f"{cost:,.2f} us"

    def limit(self, index: int) -> Roofline | None:
        """Compare a call with this machine's peaks, if they are known."""
        return self.peaks.limit(self.operators[index]) if self.peaks and index < len(self.operators) else None


@dataclass(frozen=True)
class TensorDifference:
    """How far a tensor of the model is from its reference."""

    tensor: str
    largest: float
    allowed: float
    is_within: bool
    verdict: str


@dataclass(frozen=True)
class ModuleMeasurements:
    """What was measured of a page's module; parts that were not are None."""

    costs: Costs | None = None
    reference: str = ""
    differences: Mapping[str, TensorDifference] = field(default_factory=dict)  # by tensor

    def difference(self, tensors: Sequence[str]) -> TensorDifference | None:
        """Return the worst difference among tensors: one beyond what is allowed, else the largest part of that."""
        known = [self.differences[name] for name in tensors if name in self.differences]
        return max(known, key=_badness) if known else None


def _badness(item: TensorDifference) -> tuple[bool, float, float]:
    return not item.is_within, item.largest / item.allowed if item.allowed else item.largest, item.largest


NOTHING = ModuleMeasurements()
