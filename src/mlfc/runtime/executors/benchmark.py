"""How long calls take: TVM's ``time_evaluator`` and what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mlfc.errors import OptionError
from mlfc.support.text import Displayed

_GROWTH = 1.618  # of the calls of a repetition that took too little time


@dataclass(frozen=True, repr=False)
class BenchmarkResult(Displayed):
    """The seconds of a call, once for each repetition.

    Attributes
    ----------
    results : tuple of float
    """

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean, in seconds, as all of these."""
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        """The median."""
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        """The least."""
        return min(self.results)

    @property
    def max(self) -> float:
        """The most."""
        return max(self.results)

    @property
    def std(self) -> float:
        """The standard deviation."""
        return float(np.std(self.results))

    def _facts(self) -> Mapping[str, object]:
        names = ("mean", "median", "max", "min", "std")
        return {**{name: f"{getattr(self, name) * 1e3:.4g} ms" for name in names}, "repeat": len(self.results)}


def evaluate(
    call: Callable[[], object],
    *,
    number: int,
    repeat: int,
    min_repeat_ms: float = 0,
    cooldown_interval_ms: float = 0,
    repeats_to_cooldown: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> BenchmarkResult:
    """Return how long a call takes, after one that is not counted.

    Parameters
    ----------
    call : callable
    number : int
        Calls of a repetition, of which the mean counts.
    repeat : int
        Repetitions.
    min_repeat_ms : float
        Calls are added until a repetition takes so long.
    cooldown_interval_ms : float
        Time to wait after each `repeats_to_cooldown` repetitions.
    repeats_to_cooldown : int
    clock : callable
        Returns seconds.
    """
    if number < 1 or repeat < 1 or repeats_to_cooldown < 1:
        raise OptionError(f"expected at least 1 call and repetition, got number={number}, repeat={repeat}")
    call()
    results = []
    for iteration in range(repeat):
        while True:
            start = clock()
            for _ in range(number):
                call()
            passed = clock() - start
            if passed * 1e3 >= min_repeat_ms:
                break
            needed = min_repeat_ms / max(passed * 1e3 / number, 1e-6)
            number = int(max(needed + 1, number * _GROWTH))
        results.append(passed / number)
        if cooldown_interval_ms > 0 and (iteration + 1) % repeats_to_cooldown == 0:
            time.sleep(cooldown_interval_ms / 1e3)
    return BenchmarkResult(tuple(results))
