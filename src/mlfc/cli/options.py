"""What several commands take, and how its text is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from mlfc.errors import OptionError

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board as ChosenBoard

LimitFactor: TypeAlias = Annotated[
    float,
    typer.Option(
        "--limit-factor",
        metavar="N",
        help="Multiply the limits of what a model may cost to compile beyond the size of its file.",
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Target: TypeAlias = Annotated[str, typer.Option("--target", help="What the code is for: c, 'c -mcpu=cortex-m4', ...")]
Optimize: TypeAlias = Annotated[str, typer.Option("--optimize", help="speed or size.")]
Numerics: TypeAlias = Annotated[
    str, typer.Option("--numerics", help="Whose integer rounding: litert or tflm (TensorFlow Lite Micro's).")
]
Shapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=1,3,224,224", help="Fix the shape of an input; may be given again."),
]
Module: TypeAlias = Annotated[
    str | None, typer.Option("--module", metavar="NAME", help="Which module, where there are several.")
]
Board: TypeAlias = Annotated[
    str | None,
    typer.Option("--board", metavar="NAME", help="A board of mlfc boards, or a .toml file that describes one."),
]
TrustBoard: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-board", help="Let the board's .toml file name any compiler, emulator, option and flash tool."
    ),
]
Samples: TypeAlias = Annotated[int, typer.Option("--samples", help="Sets of random inputs.")]
Inputs: TypeAlias = Annotated[
    Path | None, typer.Option("--inputs", help=".npz with the inputs by name, or arr_0, arr_1, ... by position.")
]
Outputs: TypeAlias = Annotated[Path | None, typer.Option("--outputs", help="Where to write the outputs, as .npz.")]
Fill: TypeAlias = Annotated[str, typer.Option("--fill", help="Without --inputs: random, zeros or ones.")]
Seed: TypeAlias = Annotated[int, typer.Option("--seed", help="Of the random inputs.")]

_MAX_DIMENSIONS = 32


def chosen_board(name: str | None, trust: bool) -> ChosenBoard | None:
    """Return the board that --board names; None without one."""
    if name is None:
        if trust:
            raise OptionError("option --trust-board requires --board", next_step="Add --board FILE.toml")
        return None
    from mlfc.micro.board.board import find_board

    return find_board(name, trust=trust)


def parse_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Return shapes by input name from texts like ``input=1,3,224,224``; OptionError where one does not read so."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts or ():
        # names of inputs may hold "=", lists of numbers cannot
        name, equals, extents = text.rpartition("=")
        parts = [part.strip() for part in extents.split(",")] if extents else []
        if not name or not equals or not all(re.fullmatch(r"[1-9][0-9]{0,9}", part) for part in parts):
            raise OptionError(
                f"expected NAME=1,3,224,224, got '{text}'", place="--shape", next_step="Write NAME=1,3,224,224"
            )
        if len(parts) > _MAX_DIMENSIONS:
            raise OptionError(f"{len(parts)} dimensions are too many", place="--shape")
        if name in shapes:
            raise OptionError(f"the shape of '{name}' is specified twice", place="--shape")
        shapes[name] = tuple(map(int, parts))
    return shapes


def shapes_by_model(texts: Sequence[str] | None, models: Sequence[str]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes for each of several models, from texts like ``kws:input=1,49,10,1``.

    One model takes the texts without its name in front: names of inputs may hold colons.
    """
    if len(models) == 1:
        return {models[0]: parse_shapes(texts)}
    given: dict[str, list[str]] = {name: [] for name in models}
    for text in texts or ():
        name, _, shape = text.partition(":")
        if name not in given:
            raise OptionError(
                f"expected MODEL:NAME=1,3,224,224, got '{text}'",
                place="--shape",
                next_step=f"Write MODEL:NAME=1,3,224,224 with a model of: {', '.join(models)}",
            )
        given[name].append(shape)
    return {name: parse_shapes(shapes) for name, shapes in given.items()}


def parse_models(texts: Sequence[str]) -> dict[str, Path]:
    """Return model files by module name from texts like ``kws=a.tflite`` or ``a.tflite`` (named after the file)."""
    models: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        # a file may be called a=b.tflite
        named = equals and not Path(text).exists()
        if named and not re.fullmatch(r"\w+", name) and Path(path).exists():
            raise OptionError(
                f"invalid module name '{name}'", place=text, next_step="Use letters, digits and underscores"
            )
        if not named or not re.fullmatch(r"\w+", name):
            name, path = Path(text).name.partition(".")[0], text
        if name in models:
            raise OptionError(f"two models have the name '{name}'", next_step="Name them: NAME=FILE")
        models[name] = Path(path)
    return models
