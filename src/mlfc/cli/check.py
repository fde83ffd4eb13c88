"""``mlfc check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlfc.cli.compiling import board_asks
from mlfc.cli.options import Inputs, chosen_board
from mlfc.cli.tables import print_json
from mlfc.errors import MlfcError, ProblemsError

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
    board: str | None = None,
    trust_board: bool = False,
    shape: list[str] | None = None,
    value: list[str] | None = None,
    state: list[str] | None = None,
    state_init: str | None = None,
    byoc: list[str] | None = None,
    limit_factor: float = 1.0,
    as_json: bool = False,
) -> None:
    """List all that mlfc cannot compile in a model."""
    from mlfc.byoc import find_generators
    from mlfc.problems import check as problems_of

    find_generators(byoc or ())
    on_board = chosen_board(board, trust_board)
    chosen = target if on_board is None else board_asks(on_board, target, None)[0]
    problems = problems_of(
        model,
        **Inputs.of(shape, value, state, state_init).arguments(),
        byoc=byoc or (),
        target=chosen or "c",
        limit_factor=limit_factor,
    )
    if as_json:
        print_json({"model": str(model), "problems": [_entry(problem) for problem in problems]})
    elif not problems:
        typer.echo(f"{model}: no problems found")
    if problems:
        raise problems[0] if len(problems) == 1 else ProblemsError(problems, place=str(model))


def _entry(error: MlfcError) -> dict[str, str | None]:
    return {"code": error.code, "place": error.place, "cause": error.cause, "next_step": error.next_step}
