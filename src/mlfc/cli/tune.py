"""``mlfc tune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.options import BoardOptions, Fields, Inputs
from mlfc.cli.tables import print_json, print_table
from mlfc.support.text import printable
from mlfc.target.target import EVERY_CPU
from mlfc.tuning.options import TuneOptions

if TYPE_CHECKING:
    from mlfc.tuning.tune import TuningResult

EXAMPLES = (
    "mlfc tune resnet18.onnx -o tune.jsonl",
    "mlfc tune kws.tflite --budget 300 --plot search.html",
    "mlfc tune kws.tflite --board mps2-an386 -o kws_m4.jsonl",
    "mlfc tune resnet.onnx --shape input=1,3,224,224 --trials 40 --seed 7",
    "mlfc tune resnet18.onnx --scheduler tcp://10.0.0.5:8786",
    "mlfc compile resnet18.onnx --emit so --tuned tune.jsonl",
)
_SETTINGS = ("optimize", "numerics", "limit_factor", "trials", "budget", "seed", "scheduler")
_SHOWN = 10


def tune(
    model: Annotated[Path, typer.Argument(help="A TFLite or ONNX file.")],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The log, JSON lines. An existing log is continued: its entries are not measured again.",
        ),
    ] = Path("tune.jsonl"),
    target: Annotated[
        str | None,
        typer.Option(
            help="A target of this machine. Default: this processor, as libraries for every processor use it."
        ),
    ] = None,
    board: BoardOptions,
    fixed: Inputs,
    settings: Annotated[dict[str, Any], Fields(TuneOptions, _SETTINGS)],
    plot: Annotated[
        Path | None, typer.Option(help="Write a page with a plot of the search.", metavar="FILE.html")
    ] = None,
    as_json: bool = False,
) -> None:
    """Search for faster kernel configurations by measurement.

    Writes the log that compile --tuned reads. Kernels that differ only in their weights are measured once. Every
    candidate's results are compared bit for bit with those of the default, and a candidate wins only if it is clearly
    faster. An interrupted search can be continued.
    """
    from mlfc.support.atomic import check_writable, write_bytes
    from mlfc.tuning.log import page
    from mlfc.tuning.tune import tune_model

    on_board = board.chosen(target)
    if plot is not None:
        check_writable(plot)
    options = TuneOptions(
        target or EVERY_CPU, output=output, board=on_board, progress=True, **fixed.keywords(), **settings
    )
    found = tune_model(model, options)
    if plot is not None:
        from mlfc.tuning.log import LogFile

        entries = LogFile(output).current(found.target, options.optimize, found.measured)
        own = {kernel.key for kernel in found.kernels}
        write_bytes(plot, page(f"{model.name} for {found.target}", entries, own).encode())
    _report(found, as_json)


def _report(found: TuningResult, as_json: bool) -> None:
    if as_json:
        kernels = [
            {"kernel": item.kernel, "calls": item.calls, "values": dict(item.values), "ratio": item.ratio}
            for item in found.kernels
        ]
        head = {"log": str(found.log), "target": found.target, "measured": found.measured}
        counts = {"complete": found.is_complete, "trials": found.trials, "known": found.known}
        ratios = {"ratio": found.ratio, "model_ratio": found.model_ratio}
        print_json({**head, **counts, **ratios, "kernels": kernels})
        return
    better = sorted((item for item in found.kernels if item.values), key=lambda item: item.ratio)
    rows = []
    for item in better[:_SHOWN]:
        values = " ".join(f"{name}={value}" for name, value in sorted(item.values.items()))
        rows.append((item.kernel[:70], item.calls, values, round(item.ratio, 3)))
    if rows:
        title = f"{found.log}: {len(better)} of {len(found.kernels)} kernels have faster values for {found.target}"
        print_table(title, ("kernel", "calls", "values", "ratio"), rows)
    elif not found.kernels:
        typer.echo(printable(f"{found.log}: no kernel of this model has parameters for {found.target}"))
    else:
        typer.echo(printable(f"{found.log}: the default is best for all of {len(found.kernels)} kernels"))
    typer.echo(
        f"{found.trials} candidates measured, {found.known} known; relative time of these kernels: {found.ratio:.3f}"
    )
    if found.model_ratio is not None:
        typer.echo(f"relative time of the whole model: {found.model_ratio:.3f}")
    if not found.is_complete:
        typer.echo("the search reached its budget; the same command continues it")
