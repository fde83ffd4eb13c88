"""The options of `mlfc.verify`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, TypeAlias

from mlfc.errors import OptionError
from mlfc.options import ImportOptions
from mlfc.support.keywords import option
from mlfc.target.defaults import PORTABLE

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board
    from mlfc.runtime.modules.runnable import Computes

Say: TypeAlias = Callable[[int, int, str], object]


@dataclass(frozen=True, eq=False)
class VerifyOptions(ImportOptions):
    """Options of `verify`, and those with which a model that it compiles is imported."""

    artifact: str | os.PathLike[str] | Computes | None = option(
        None, "A path, or a loaded or compiled model: what the model was compiled to. Default: it is compiled here."
    )
    _: KW_ONLY
    target: str = option(PORTABLE, "The target of a model that is compiled here.")
    optimize: str = option("speed", "``speed`` (default) or ``size``, for a model that is compiled here.")
    module: str | None = option(None, "The module of the artifact, if there are several.")
    samples: int = option(10, "Random sets of inputs, besides the three special ones.")
    seed: int = option(0, "Seed of the random inputs.")
    layers: bool = option(
        False,
        "Compare every layer, too. For that the model is compiled here with every tensor as an output; if the code "
        "that ships differs, its fused groups are looked at as well. For a board it is compiled as it ships, and its "
        "operators are compared, by checksums (`board_layers`). Branches and loops with run-time conditions are one "
        "layer each, and sequences inside the model are not compared.",
    )
    board: str | Board | None = option(
        None,
        "Compile for this board instead of `target`, and run as firmware under its emulator. `micro.board.find_board` "
        "reads the file of a board whose author is trusted.",
    )
    inputs: str | os.PathLike[str] | None = option(
        None, "Sets of inputs to compare on, instead of generated ones; see `mlfc.verify.inputs.read_sets`."
    )
    labels: str | os.PathLike[str] | None = option(
        None, "The class of each set of inputs, .npy or one a line: counts how many are right."
    )
    rtol: float | None = option(
        None,
        "Tolerance relative to each reference value; with atol the only criterion: ``atol + rtol * abs(reference)``.",
    )
    atol: float | None = option(None, "Absolute tolerance; with rtol the only criterion.")
    progress: Say | bool | None = option(
        None,
        "Called with the number of sets of inputs that are done, their total, and the name of the next. True shows a "
        "bar.",
    )

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise OptionError(f"{self.samples} samples are too few", next_step="Use 0 or more")
        if self.layers and self.artifact is not None:
            raise OptionError(
                "an artifact has no layers to look at",
                next_step="Leave out the artifact or --layers, and compare again",
            )
        if self.labels is not None and self.inputs is None:
            raise OptionError(
                "option --labels requires --inputs", next_step="Give the inputs that the labels belong to"
            )
        for name, value in (("--rtol", self.rtol), ("--atol", self.atol)):
            if value is not None and not value >= 0:  # NaN, too
                raise OptionError(f"expected a number of 0 or more, got {value}", place=name)
