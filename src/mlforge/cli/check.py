"""``mlforge check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlforge.cli.compile_options import Generators
from mlforge.cli.options import Json, Shapes, parse_shapes
from mlforge.cli.tables import print_json
from mlforge.errors import MlforgeError, ProblemsError

EXAMPLES = (
    "mlforge check kws.tflite",
    "mlforge check resnet.onnx --shape input=1,3,224,224",
    "mlforge check detector.onnx --byoc onnxruntime",
)


def check(
    model: Annotated[Path, typer.Argument(help="A TFLite or ONNX file.")],
    shape: Shapes = None,
    byoc: Generators = None,
    as_json: Json = False,
) -> None:
    """List all that mlforge cannot compile in a model."""
    from mlforge import frontend
    from mlforge.byoc import find_generators

    find_generators(byoc or ())
    problems = frontend.check(model, shapes=parse_shapes(shape), byoc=byoc or ())
    if as_json:
        print_json({"model": str(model), "problems": [_entry(problem) for problem in problems]})
    elif not problems:
        typer.echo(f"{model}: no problems found")
    if problems:
        raise problems[0] if len(problems) == 1 else ProblemsError(problems, place=str(model))


def _entry(error: MlforgeError) -> dict[str, str | None]:
    return {"code": error.code, "place": error.place, "cause": error.cause, "next_step": error.next_step}
