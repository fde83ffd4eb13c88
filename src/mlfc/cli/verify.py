"""``mlfc verify``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.artifacts import core_warnings
from mlfc.cli.options import BoardOptions, Fields, Inputs, given_options, target_option
from mlfc.cli.tables import Styled, print_json, print_table
from mlfc.errors import BudgetError, OptionError
from mlfc.support.text import sets_of_inputs, shortened
from mlfc.verify.options import VerifyOptions

if TYPE_CHECKING:
    from mlfc.verify import Comparison, Difference

EXAMPLES = (
    "mlfc verify kws.tflite",
    "mlfc verify kws.tflite kws.tar --samples 200",
    "mlfc verify resnet.onnx --layers --target 'c -mcpu=x86-64-v3'",
    "mlfc verify classifier.onnx --inputs images.npy --labels classes.txt",
    "mlfc verify yolo.onnx --rtol 1e-3 --atol 1e-5",
    "mlfc verify ad01.tflite --numerics tflm --layers",
    "mlfc verify kws.tflite --board mps3-an547 --samples 3 --layers",
    "mlfc verify detector.onnx --byoc onnxruntime",
)

_EXCUSES = {"rounding": "differs by rounding", "tie": "differs in labels that tie", "confirmed": "nearer to float64"}
_NAMED = 8
_OPTIONAL = ("dtype", "SNR dB", "cosine")


def verify(
    model: Annotated[Path, typer.Argument(help="The original TFLite or ONNX file.")],
    artifact: Annotated[Path | None, typer.Argument(help="Its compiled form; by default it is compiled here.")] = None,
    *,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="Compare on these inputs: .npz by name or position, .npy, an image or WAV file, a folder of those, or"
            " the raw bytes. Several sets have a leading axis."
        ),
    ] = None,
    settings: Annotated[dict[str, Any], Fields(VerifyOptions, ("labels", "samples", "seed", "rtol", "atol"))],
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="Compare every layer as well; report the first layer or fused group that differs."
        ),
    ] = False,
    module: str | None = None,
    target: Annotated[
        str | None,
        target_option(
            "Compile for: c, 'c -mcpu=native', ... Default: c, as for the archives of mlfc compile; to check a"
            " library, pass its file."
        ),
    ] = None,
    board: BoardOptions,
    fixed: Inputs,
    code: Annotated[dict[str, Any], Fields(VerifyOptions, ("optimize", "numerics", "byoc", "limit_factor"))],
    as_json: bool = False,
) -> None:
    """Compare with LiteRT (TFLite) or ONNX Runtime (ONNX).

    Both run on the same inputs. The exit status is 1 if labels and other integers differ, or if floats differ by more
    than 1e-5 of the tensor's largest value, unless the model in float64 shows that the difference is due to rounding:
    the reference is then as far from the float64 result, and a change in the last bits of the weights changes the
    reference as much. Labels may differ if their scores tie.

    With --numerics tflm the reference is still LiteRT. TensorFlow Lite Micro rounds fully connected layers differently,
    so these and subsequent layers may differ; this counts as a difference like any other.
    """
    from mlfc.target.target import PORTABLE
    from mlfc.verify.compare import verify_model

    usual = {"target": PORTABLE, "optimize": "speed", "numerics": "litert", "byoc": None}
    compiling = {**usual, **code, "target": target or PORTABLE}
    if artifact is not None and (fixed.shape or any(compiling[name] != usual[name] for name in usual)):
        raise OptionError(
            "options --target, --optimize, --numerics, --shape and --byoc have no effect on a compiled artifact",
            next_step="Remove the artifact or these options",
        )
    chosen = board.chosen(None if target == PORTABLE else target)
    warnings = {} if chosen is None or artifact is None else core_warnings(artifact, chosen, str(board.board), module)
    wanted = VerifyOptions(
        artifact,
        **fixed.keywords(),
        **given_options({"target": target}),
        **code,
        **settings,
        module=module,
        layers=layers,
        board=chosen,
        inputs=inputs,
        progress=True,
    )
    result = verify_model(model, wanted)
    _report(result, as_json, warnings)
    require_equal(result, model, wanted.numerics)


def require_equal(result: Comparison, model: Path, numerics: str = "litert") -> None:
    """Raise BudgetError if a model differs from its reference, with the position of the first difference."""
    from mlfc.verify.inputs import why

    first = result.first_differing
    if first is None:
        return
    kind = "operator" if first.nodes else "layer" if first in result.layers else "output"
    if first in result.groups:
        kind = "fused group"
    size = (
        f"{first.lone_nans:,} elements are NaN on one side only"
        if first.lone_nans
        else f"by {first.largest:.6g} in element {first.element}, tolerance {first.tolerance:.6g}, and in "
        f"{first.elements:,} elements in total"
    )
    cause = (
        f"the first {kind} that differs is {shortened(first.nodes[0] if first.nodes else first.tensor)}: {size}, with "
    )
    reason = why(first.sample)
    cause += f"the inputs '{first.sample}'" + (f" ({reason})" if reason else "")
    cause += f"; {first.note}" if first.note else ""
    hints = [] if result.layers else ["Find the layer with --layers"]
    if first.is_unlike_host:
        hints.append("The same C is correct on this machine: check the board's compiler, flags, memory and flash")
    elif first in result.groups:
        hints.append(
            "Every layer by itself is correct, but the fused code is not. Use another compiler (CC), or report it"
        )
    elif result.layers and first in result.outputs and not first.nodes:
        hints.append("Every layer and every fused group by itself is correct: check the memory that they share")
    elif first.nodes:
        hints.append("The same C has the same result on this machine, so the board is not the cause")
    if reason and first.dtype.startswith("float"):
        hints.append("If real inputs are unlike these, pass some with --inputs FILE.npz")
    if numerics == "tflm":
        hints.append("The rounding of TensorFlow Lite Micro (--numerics tflm) differs from LiteRT's")
    raise BudgetError(cause, place=str(model), next_step=". ".join(hints) or None)


def _report(result: Comparison, as_json: bool, warnings: Mapping[str, list[str]]) -> None:
    if as_json:
        print_json({**asdict(result), "is_within": result.is_within, **warnings})
        return
    title = f"against {result.reference}, {sets_of_inputs(result.samples)}"
    tables = (("outputs", result.outputs), ("layers", result.layers), ("fused groups that differ", result.groups))
    for name, items in tables:
        if items:
            titles = ("tensor", "dtype", "largest |difference|", "allowed", "cosine", "SNR dB", "")
            rows = []
            for item in items:
                judgement = Styled(verdict(item), "green" if item.is_within else "bold red")
                rows.append((item.tensor, item.dtype, item.largest, item.tolerance, item.cosine, item.snr, judgement))
            print_table(f"{name} {title}", titles, rows, optional=_OPTIONAL)
    judged = [
        (item.tensor, item.sample, found.error, found.reference_error, found.rounding)
        for item in (*result.outputs, *result.layers)
        if (found := item.evidence)
    ]
    if judged:
        columns = ("tensor", "inputs", "compiled", result.reference, f"{result.reference}'s own rounding")
        print_table("distance from the model in float64, where it exceeds the tolerance", columns, judged)
    for item in (*result.outputs, *result.layers):
        if item.note and item.is_within:
            typer.echo(f"{shortened(item.tensor)}: {item.note}")
    if count := sum(item.excuse == "confirmed" for item in result.layers):
        typer.echo(
            f"{count} layers differ from {result.reference} and are nearer to float64; from float64's inputs, "
            f"{result.reference} computes the same"
        )
    if result.refused:
        typer.echo(
            f"{result.reference} rejected {result.refused} more sets of generated inputs; pass others with --inputs"
        )
    if result.unseen:
        names = ", ".join(map(shortened, result.unseen[:_NAMED]))
        more = f" and {len(result.unseen) - _NAMED} more" if len(result.unseen) > _NAMED else ""
        typer.echo(f"compared only by results, not layer by layer: branches and loops of {names}{more}")
    if result.accuracy is not None:
        accuracy = result.accuracy
        typer.echo(
            f"accuracy of {shortened(accuracy.output)}: {accuracy.compiled:,} of {accuracy.samples:,} right, "
            f"{result.reference} {accuracy.reference:,}; same answer in {accuracy.agreeing:,}"
        )


def verdict(item: Difference) -> str:
    """Return the comparison result of a tensor as text."""
    if not item.is_within:
        return "DIFFERS on the board" if item.is_unlike_host else "DIFFERS"
    usual = "within tolerance" if item.largest else "equal"
    words = _EXCUSES.get(item.excuse, usual)
    return words + (f"; {item.nans:,} elements are NaN in both" if item.nans else "")
