"""``mlfc quantize``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlfc.cli.options import Inputs, numbers
from mlfc.cli.tables import print_json, print_table
from mlfc.errors import OptionError
from mlfc.support.atomic import replaces_earlier
from mlfc.support.text import model_title, printable, sets_of_inputs

if TYPE_CHECKING:
    from mlfc.quantize.quantize import LayerError, QuantizedModel

EXAMPLES = (
    "mlfc quantize resnet.onnx --calibrate images/ --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225",
    "mlfc quantize kws.onnx --calibrate inputs.npz --evaluate held_out.npz --labels labels.npy",
    "mlfc quantize kws.onnx --calibrate inputs.npz --inputs-dtype int8 --outputs-dtype int8 -o kws_int8.onnx",
    "mlfc quantize vad.onnx --calibrate frames.npz --shape input=1,512 --activations int16",
    "mlfc quantize detector.onnx --calibrate images/ --exclude /head/Conv --method percentile",
)
_WORST = 10


def quantize(
    model: Annotated[Path, typer.Argument(help="An ONNX file of float32.")],
    *,
    calibrate: Annotated[
        Path,
        typer.Option(
            metavar="DATA",
            help="Typical inputs: .npz or .npy as for mlfc verify --inputs, or a folder of those or of images.",
        ),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: <name>_int8.onnx.")] = None,
    shape: list[str] | None = None,
    op: list[str] | None = None,
    samples: Annotated[int, typer.Option(help="Maximum number of input sets.", metavar="N")] = 100,
    method: Annotated[str, typer.Option(help="Calibration method: minmax, entropy or percentile.")] = "minmax",
    activations: Annotated[
        str, typer.Option(help="int8, uint8, or int16, which needs twice the memory and is more accurate.")
    ] = "int8",
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--per-tensor", help="A scale for each channel of weights, or one for all.")
    ] = True,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="A node that stays float; repeatable.")
    ] = None,
    inputs_dtype: Annotated[str, typer.Option(help="float32, or the dtype of --activations.")] = "float32",
    outputs_dtype: Annotated[str, typer.Option(help="float32, or the dtype of --activations.")] = "float32",
    evaluate: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="Held-out inputs for --labels, as for --calibrate. Default: --calibrate."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="The class of each of these input sets, .npy or one per line, to measure accuracy."),
    ] = None,
    mean: Annotated[
        str | None, typer.Option(metavar="R,G,B", help="Of images: mean, subtracted from pixel values of 0 to 1.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="R,G,B", help="Of images: standard deviation, the divisor after that.")
    ] = None,
    as_json: bool = False,
) -> None:
    """Quantize a float32 ONNX model to int8.

    Requires typical inputs, and shows the error of each layer. ONNX Runtime's quantizer chooses the ranges. The result
    is an ONNX model that compiles like any other.
    """
    from mlfc.quantize.quantize import PRODUCER
    from mlfc.quantize.quantize import quantize as quantized
    from mlfc.verify.media import ImageScaling

    for option, path in (("calibrate", calibrate), ("evaluate", evaluate)):
        if path is not None and not path.exists():
            raise OptionError("file or folder not found", place=f"--{option} {path}")
    scaling = ImageScaling(numbers("--mean", mean, (0.0,)), numbers("--std", std, (1.0,)))
    target = output or Path(f"{model_title(model)}_{'int16' if activations == 'int16' else 'int8'}.onnx")
    # at the start of ONNX: the version of its format, and the producer
    mark = bytes((18, len(PRODUCER))) + PRODUCER.encode()
    replaces = output is None and replaces_earlier(target, mark)
    found = quantized(
        model,
        calibrate,
        target,
        shapes=Inputs(shape).keywords()["shapes"],
        samples=samples,
        method=method,
        activations=activations,
        per_channel=per_channel,
        exclude=tuple(exclude or ()),
        inputs_dtype=inputs_dtype,
        outputs_dtype=outputs_dtype,
        evaluate=evaluate,
        labels=labels,
        scaling=scaling,
        operators=op or (),
        progress=True,
    )
    _report(found, as_json, replaces)


def _report(found: QuantizedModel, as_json: bool, replaces: bool) -> None:
    accuracy = found.accuracy
    if as_json:
        sizes = {"before": found.bytes_before, "after": found.bytes_after}
        head = {"path": str(found.path), "samples": found.samples, "bytes": sizes}
        layers, outputs = [vars(item) for item in found.layers], [item.tensor for item in found.outputs]
        print_json({**head, "layers": layers, "outputs": outputs, "accuracy": accuracy and vars(accuracy)})
        return
    columns = ("tensor", "node", "operator", "largest", "largest error", "signal to noise dB")
    print_table("outputs", columns, [_row(item) for item in found.outputs])
    worst = sorted(found.layers, key=lambda item: item.noise_db)[:_WORST]
    print_table(
        f"error of each layer, the largest first ({len(worst)} of {len(found.layers)})", columns, list(map(_row, worst))
    )
    if accuracy is not None:
        typer.echo(
            f"right: {accuracy.compiled} of {accuracy.samples}, {accuracy.reference} before quantization; "
            f"same answer: {accuracy.agreeing}"
        )
    change = f"{found.bytes_before:,} -> {found.bytes_after:,} bytes"
    written = f"{found.path}, replacing the earlier one" if replaces else f"{found.path}"
    typer.echo(printable(f"{written}: {change}, {sets_of_inputs(found.samples)}. Next: mlfc compile {found.path}"))


def _row(item: LayerError) -> tuple[object, ...]:
    noise = round(item.noise_db, 1) if math.isfinite(item.noise_db) else item.noise_db
    return (item.tensor, item.node, item.operator, item.largest, item.largest_error, noise)
