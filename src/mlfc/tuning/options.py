"""The options of `mlfc.tune`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, dataclass
from typing import TYPE_CHECKING, Any

from mlfc.errors import OptionError
from mlfc.options import ImportOptions
from mlfc.support.keywords import option
from mlfc.target.target import EVERY_CPU

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board

TRIALS = 24


@dataclass(frozen=True, eq=False)
class TuneOptions(ImportOptions):
    """Options of `mlfc.tune`, including those of the model's import."""

    target: str = option(
        EVERY_CPU, "A target of this machine. Default: this processor, as libraries for every processor use it."
    )
    _: KW_ONLY
    output: str | os.PathLike[str] = option(
        MISSING, "The log, JSON lines. An existing one is continued: nothing in it is measured again."
    )
    board: Board | None = option(
        None, "Count the instructions or cycles of the board's emulator; the target is the board's."
    )
    optimize: str = option("speed", "``speed`` (default) or ``size``.")
    trials: int = option(TRIALS, "Most candidates of each kernel.")
    budget: float | None = option(None, "Start no measurement after this number of seconds.")
    seed: int = option(0, "Seed of candidates that are drawn at random, and of inputs.")
    scheduler: str | None = option(
        None,
        "The address of a dask scheduler: workers with the resource ``BUILD`` build, those with ``MEASURE`` measure; "
        "the latter must have one kind of processor.",
    )
    progress: Any = option(
        None, "Called with a `Progress` after each round. True: a bar, on a terminal or in a notebook."
    )
    bench: Any = option(None, "A `Bench` that measures, instead of this machine or the board.")
    clock: Callable[[], float] = option(time.monotonic, "Returns seconds, for the budget.")

    def __post_init__(self) -> None:
        if self.trials < 1 or self.seed < 0 or (self.budget is not None and not self.budget > 0):
            raise OptionError("expected at least 1 trial, a budget above 0 and a seed of at least 0")
