"""Search strategy for kernel parameters: candidates, rounds, and selection of the best.

The leading parameter (the tile) comes first: the values that the rule's cost model ranks highest, and some random ones.
Then each other parameter is varied alone, starting from the best so far, and the leading one again if another changed.
The best is finally measured again against the rule's values only, because the minimum of many noisy measurements is
biased.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mlfc.target.features import Choices
from mlfc.target.tuning_log import values_key

LEADING = ("tile", "strip", "filters")
_AGAIN = 5  # values of the leading parameter that are tried again after the others
LAST = 3  # the round that confirms the best


@dataclass(frozen=True)
class Trial:
    """The result of a candidate, with its cost relative to the rule's values."""

    values: Choices
    outcome: str  # right, wrong or failed
    ratio: float | None = None
    upper: float | None = None
    reason: str = ""


@dataclass(eq=False)
class KernelSearch:
    """The search for one kernel. `parameters` returns the values of each parameter given others, the rule's first.

    `margin` is the required relative improvement of a winner.
    """

    parameters: Callable[[Choices], Mapping[str, Sequence[str]]]
    trials: int
    margin: float
    draw: random.Random
    round: int = 0
    best: Choices = field(default_factory=dict)
    best_ratio: float = 1.0
    done: dict[str, Trial] = field(default_factory=dict)  # by `values_key`
    confirmed: Trial | None = None

    def candidates(self) -> list[Choices]:
        """Return the values to try in this round, except those already tried."""
        if self.round == LAST:
            return [self.best] if self.best else []
        found: dict[str, Choices] = {}
        for proposed in self._proposed():
            # drop parameters that do not exist with the other values
            known = self.parameters(proposed) if len(proposed) > 1 else None
            kept = {name: value for name, value in proposed.items() if known is None or value in known.get(name, ())}
            found[values_key(kept)] = kept
        left = max(0, self.trials - len(self.done))
        new = [values for key, values in found.items() if key not in self.done and key != values_key({})]
        return new[:left]

    def _proposed(self) -> list[Choices]:
        parameters = self.parameters(self.best)
        leading = next((name for name in LEADING if name in parameters), next(iter(parameters), ""))
        values = list(parameters.get(leading, ()))[1:]
        if self.round == 0:
            count = max(1, self.trials // 2)
            likely, rest = values[: count - count // 4], values[count - count // 4 :]
            return [{leading: value} for value in (*likely, *self.draw.sample(rest, min(len(rest), count // 4)))]
        if self.round == 1:
            others = {name: allowed for name, allowed in parameters.items() if name != leading}
            return [
                with_value(self.best, name, value, allowed[0])
                for name, allowed in others.items()
                for value in allowed
                if value != self.best.get(name, allowed[0])
            ]
        if set(self.best) - {leading}:
            usual = parameters[leading][0] if leading in parameters else ""
            return [with_value(self.best, leading, value, usual) for value in values[:_AGAIN]]
        return []

    def take(self, trials: Sequence[Trial]) -> None:
        """Record the round's results, and start the next round."""
        for trial in trials:
            if self.round == LAST:
                self.confirmed = trial
                continue
            self.done[values_key(trial.values)] = trial
            if trial.outcome == "right" and trial.ratio is not None and trial.ratio < self.best_ratio:
                self.best, self.best_ratio = trial.values, trial.ratio
        self.round += 1

    @property
    def is_over(self) -> bool:
        """Return whether the search is finished."""
        return self.round > LAST

    @property
    def choice(self) -> Trial:
        """The winner: the best candidate if its confirmation is clearly faster, else the rule's values."""
        found = self.confirmed
        if found is None or found.outcome != "right" or found.ratio is None or found.upper is None:
            return Trial({}, "right", 1.0)
        is_better = found.ratio <= 1 - self.margin and found.upper < 1
        return found if is_better else Trial({}, "right", 1.0)


def with_value(values: Choices, name: str, value: str, usual: str) -> Choices:
    """Return values with one parameter changed; the rule's value is omitted."""
    found = {**values, name: value}
    if value == usual:
        del found[name]
    return found
