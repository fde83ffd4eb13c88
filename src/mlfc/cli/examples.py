"""``mlfc examples``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlfc.support.text import printable

EXAMPLES = ("mlfc examples", "mlfc examples try && cd try && mlfc compile digits.onnx")


def examples(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write them.")] = Path(),
) -> None:
    """Write a sample model with images and labels.

    It reads handwritten digits. The model is ONNX, and int8 TFLite; calibration.npz is for mlfc quantize, held_out.npz
    and labels.npy for accuracies.
    """
    from mlfc.examples import write_examples

    made = write_examples(folder)
    typer.echo(printable(f"{', '.join(map(str, made))}. Next: mlfc compile {made[0]}"))
