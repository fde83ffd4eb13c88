"""``mlfc check``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.options import BoardOptions, Inputs
from mlfc.cli.tables import print_json
from mlfc.errors import ProblemsError, Remedy
from mlfc.support.progress import stage
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.problems import Examination, Outcome

EXAMPLES = (
    "mlfc check kws.tflite",
    "mlfc check resnet.onnx --shape input=1,3,224,224",
    "mlfc check detector.onnx --byoc onnxruntime",
    "mlfc check kws.tflite --board mps2-an386",
)


def check(
    model: Annotated[Path, typer.Argument(help="A TFLite or ONNX file.")],
    *,
    target: str | None = None,
    board: BoardOptions,
    fixed: Inputs,
    byoc: list[str] | None = None,
    limit_factor: float = 1.0,
    as_json: bool = False,
) -> None:
    """List the unsupported parts of a model.

    Also lists options that fix the problems, and dynamic dimensions. These options are tried together, and the
    remaining problems are counted. Suggested input values are examples that fit the model: only you know the right
    ones.
    """
    from mlfc.byoc import find_generators
    from mlfc.problems import examine_model
    from mlfc.support.user_files import load_user_files

    load_user_files(fixed.op or ())
    find_generators(byoc or ())
    on_board = board.chosen(target)
    chosen = target if on_board is None else on_board.target
    with stage(f"checking {model}"):
        found = examine_model(model, fixed.options(chosen, byoc=byoc, limit_factor=limit_factor))
    if as_json:
        remedies = [_remedy(item) for item in found.remedies]
        print_json({"model": str(model), **_counts(found), "remedies": remedies, "left": _counts(found.left)})
    elif summary := _summary(model, found):
        typer.echo(printable("\n".join(summary)))
    if found.problems:
        raise found.problems[0] if len(found.problems) == 1 else ProblemsError(found.problems, place=str(model))


def _summary(model: Path, found: Examination) -> list[str]:
    """Return the lines with the number of problem nodes, before and after the remedies."""
    if not found.problems:
        lines = [f"{model}: no problems found"]
        if found.open_dimensions:
            lines.append(f"dynamic dimensions: {'; '.join(map(str, found.open_dimensions))}")
        if found.bounding:
            lines.append(f"a microcontroller needs bounds of them, for example: {' '.join(found.bounding)}")
        return lines
    lines = [f"{model}: {_nodes(found)}"] if found.nodes else []
    if found.remedies:
        options = " ".join(f"{item.option} {shlex.quote(item.argument)}" for item in found.remedies)
        left = _nodes(found.left) if found.left.problems else "no problems remain"
        lines.append(f"with {options}: {left}")
    if any(item.is_example for item in found.remedies):
        fitting = "" if found.left.problems else " that fit the model"
        lines.append(f"these are examples{fitting}; use the values that you need")
    return lines


def _nodes(outcome: Outcome) -> str:
    count = len(outcome.problems)
    text = f"{count} problem{'s' if count != 1 else ''}"
    if outcome.refused:
        text += f"; {outcome.refused} of {outcome.nodes} nodes cannot be compiled"
    return f"{text}, {outcome.unchecked} of {outcome.nodes} cannot be checked yet" if outcome.unchecked else text


def _counts(outcome: Outcome) -> dict[str, Any]:
    counts = {"nodes": outcome.nodes, "refused": outcome.refused, "unchecked": outcome.unchecked}
    return {
        **counts,
        "problems": [
            {key: getattr(problem, key) for key in ("code", "place", "cause", "next_step")}
            | {"remedies": [_remedy(item) for item in problem.remedies]}
            for problem in outcome.problems
        ],
        "open_dimensions": [vars(item) for item in outcome.open_dimensions],
        "bounding": list(outcome.bounding),
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {"option": remedy.option, "argument": remedy.argument, "example": remedy.is_example}
