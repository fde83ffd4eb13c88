"""The options of `mlfc.verify`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, TypeAlias

from mlfc.errors import OptionError
from mlfc.options import ImportOptions
from mlfc.support.keywords import option
from mlfc.target.target import PORTABLE

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board
    from mlfc.runtime.modules.runnable import Computes

Say: TypeAlias = Callable[[int, int, str], object]


@dataclass(frozen=True, eq=False)
class VerifyOptions(ImportOptions):
    """Options of `verify`, including import options for a model that it compiles."""

    artifact: str | os.PathLike[str] | Computes | None = option(
        None, "The compiled model: a path, or a loaded or compiled model. Default: the model is compiled by `verify`."
    )
    _: KW_ONLY
    target: str = option(PORTABLE, "The target of a model that is compiled by `verify`.")
    optimize: str = option("speed", "``speed`` (default) or ``size``, for a model that is compiled by `verify`.")
    module: str | None = option(None, "The module of the artifact, if it has several.")
    samples: int = option(10, "Number of random input sets, besides the three special ones.")
    seed: int = option(0, "Seed of the random inputs.")
    layers: bool = option(
        False,
        "Compare every layer, too. The model is compiled with every tensor as an output; if the outputs of the normal "
        "build differ, its fused groups are compared as well. For a board, the operators of the normal build are "
        "compared by checksums (`board_layers`). Branches and loops with run-time conditions are one "
        "layer each, and sequences inside the model are not compared.",
    )
    board: str | Board | None = option(
        None,
        "Compile for this board instead of `target`, and run as firmware under its emulator. `micro.board.find_board` "
        "reads a board file, whose author must be trusted.",
    )
    inputs: str | os.PathLike[str] | None = option(
        None, "Input sets, instead of generated ones; see `mlfc.verify.inputs.read_sets`."
    )
    labels: str | os.PathLike[str] | None = option(
        None, "The expected class of each input set, .npy or one per line; correct predictions are counted."
    )
    rtol: float | None = option(
        None,
        "Tolerance relative to each reference value; with atol the only criterion: ``atol + rtol * abs(reference)``.",
    )
    atol: float | None = option(None, "Absolute tolerance; with rtol the only criterion.")
    progress: Say | bool | None = option(
        None,
        "Called with the number of finished input sets, their total, and the name of the next. True shows a progress "
        "bar.",
    )

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise OptionError(f"expected at least 0 samples, got {self.samples}", next_step="Use --samples 0 or more")
        if self.layers and self.artifact is not None:
            raise OptionError(
                "option --layers cannot be combined with an artifact",
                next_step="Omit the artifact or --layers",
            )
        if self.labels is not None and self.inputs is None:
            raise OptionError("option --labels requires --inputs", next_step="Provide the inputs for the labels")
        for name, value in (("--rtol", self.rtol), ("--atol", self.atol)):
            if value is not None and not value >= 0:  # NaN, too
                raise OptionError(f"expected a number of 0 or more, got {value}", place=name)
