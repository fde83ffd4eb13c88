"""``mlforge verify``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlforge.cli.compile_options import Generators
from mlforge.cli.options import Board, Json, Module, Numerics, Optimize, Samples, Seed, Shapes, Target, parse_shapes
from mlforge.cli.tables import print_json, print_table
from mlforge.errors import BudgetError, OptionError
from mlforge.support.progress import stage
from mlforge.support.text import shortened

if TYPE_CHECKING:
    from mlforge.verify import Comparison, Difference

EXAMPLES = (
    "mlforge verify kws.tflite",
    "mlforge verify kws.tflite kws.tar --samples 200",
    "mlforge verify resnet.onnx --layers",
    "mlforge verify ad01.tflite --numerics tflm --layers",
    "mlforge verify kws.tflite --board mps3-an547 --samples 3 --layers",
    "mlforge verify detector.onnx --byoc onnxruntime",
)


def verify(
    model: Annotated[Path, typer.Argument(help="The original TFLite or ONNX file.")],
    artifact: Annotated[Path | None, typer.Argument(help="What it was compiled to; compiled here if left out.")] = None,
    *,
    samples: Samples = 10,
    seed: Seed = 0,
    layers: Annotated[bool, typer.Option("--layers", help="Compare every layer; name the first that differs.")] = False,
    module: Module = None,
    target: Target = "c",
    board: Board = None,
    optimize: Optimize = "speed",
    numerics: Numerics = "litert",
    shape: Shapes = None,
    byoc: Generators = None,
    as_json: Json = False,
) -> None:
    """Compare with LiteRT (TFLite) or ONNX Runtime (ONNX).

    Both run on the same seeded inputs. Fails with status 1 where integers differ (from ONNX Runtime: by more than
    one) or floats differ by more than 1e-5 of the tensor's largest value.

    With --numerics tflm the reference is LiteRT nevertheless. TensorFlow Lite Micro rounds fully connected layers in
    another way, so these may differ, and what follows from them too; that counts as different like anything else.
    """
    from mlforge.verify import verify as compare

    if artifact is not None and (shape or byoc or (target, optimize, numerics) != ("c", "speed", "litert")):
        raise OptionError(
            "--target, --optimize, --numerics, --shape and --byoc say how to compile; the artifact is compiled already",
            next_step="Leave out the artifact or these options",
        )
    if board is not None and target != "c":
        raise OptionError("a board says what its target is", place="--target", next_step="Leave out one of the two")
    with stage(f"comparing {model}"):
        result = compare(
            model,
            artifact,
            module=module,
            samples=samples,
            seed=seed,
            layers=layers,
            shapes=parse_shapes(shape),
            target=target,
            optimize=optimize,
            numerics=numerics,
            board=board,
            byoc=byoc or (),
        )
    _report(result, as_json)
    first = result.first_differing
    if first is None:
        return
    kind = "operator" if first.nodes else "layer" if result.layers else "output"
    hints = [] if result.layers else ["Look for the layer with --layers"]
    if first.is_unlike_host:
        hints.append("The same C is right on this machine: look at the board's compiler, flags, memory and flash")
    elif first.nodes:
        hints.append("The same C gives this on this machine, too: it is not the board")
    if numerics == "tflm":
        hints.append("TensorFlow Lite Micro's rounding, which --numerics tflm asked for, is not LiteRT's")
    raise BudgetError(
        f"the first {kind} that differs is {shortened(first.nodes[0] if first.nodes else first.tensor)}: by "
        f"{first.largest:.6g} in element {first.element}, where {first.tolerance:.6g} is allowed, and in "
        f"{first.elements:,} elements at all, with the inputs '{first.sample}'",
        place=str(model),
        next_step=". ".join(hints) or None,
    )


def _report(result: Comparison, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(result), "is_within": result.is_within})
        return
    title = f"against {result.reference}, {result.samples} sets of inputs"
    for name, items in (("outputs", result.outputs), ("layers", result.layers)):
        if items:
            print_table(
                f"{name} {title}", ("tensor", "dtype", "largest |difference|", "allowed", ""), [_row(i) for i in items]
            )


def _row(item: Difference) -> tuple[object, ...]:
    return item.tensor, item.dtype, item.largest, item.tolerance, _verdict(item)


def _verdict(item: Difference) -> str:
    if item.is_within:
        return "equal"
    return "DIFFERS on the board" if item.is_unlike_host else "DIFFERS"
