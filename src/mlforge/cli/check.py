"""``mlforge check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlforge.cli.options import Json, Shapes, parse_shapes
from mlforge.cli.tables import print_json
from mlforge.errors import MlforgeError, ProblemsError

EXAMPLES = ("mlforge check kws.tflite", "mlforge check resnet.onnx --shape input=1,3,224,224")


def check(
    model: Annotated[Path, typer.Argument(help="A TFLite or ONNX file.")],
    shape: Shapes = None,
    as_json: Json = False,
) -> None:
    """List everything in a model that mlforge cannot compile, all at once."""
    import mlforge

    problem: MlforgeError | None = None
    try:
        mlforge.import_model(model, shapes=parse_shapes(shape))
    except MlforgeError as error:
        problem = error
    if as_json:
        print_json({"model": str(model), "problems": [_entry(item) for item in _problems(problem)]})
    elif problem is None:
        typer.echo(f"{model}: no problems found")
    if problem is not None:
        raise problem


def _problems(error: MlforgeError | None) -> tuple[MlforgeError, ...]:
    if isinstance(error, ProblemsError):
        return error.problems
    return () if error is None else (error,)


def _entry(error: MlforgeError) -> dict[str, str | None]:
    return {"code": error.code, "place": error.place, "cause": error.cause, "next_step": error.next_step}
