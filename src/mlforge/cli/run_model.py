"""``mlforge run``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlforge.cli.options import Json, Module, Seed, Shapes, parse_shapes
from mlforge.cli.profile_table import as_rows, print_profile
from mlforge.cli.tables import describe_tensor, print_json, print_table
from mlforge.errors import OptionError, RunError
from mlforge.support.progress import stage

if TYPE_CHECKING:
    from mlforge.compiler import Factory
    from mlforge.runtime import GraphModule, OperatorTime, ProfiledModule, Runnable
    from mlforge.runtime.arrays import Array

EXAMPLES = (
    "mlforge run kws.tar --inputs in.npz --outputs out.npz",
    "mlforge run kws.tar --fill random --seed 1 --repeat 100",
    "mlforge run kws.tflite --top 3",
    "mlforge run kws.tar --profile --repeat 100 --top 5",
)
_PROFILED_RUNS = 10


def run_model(
    artifact: Annotated[Path, typer.Argument(help="An archive or shared library; a model is compiled first.")],
    *,
    inputs: Annotated[
        Path | None, typer.Option(help=".npz with the inputs by name, or arr_0, arr_1, ... by position.")
    ] = None,
    outputs: Annotated[Path | None, typer.Option(help="Where to write the outputs, as .npz.")] = None,
    fill: Annotated[str, typer.Option(help="Without --inputs: random, zeros or ones.")] = "random",
    seed: Seed = 0,
    module: Module = None,
    repeat: Annotated[
        int | None,
        typer.Option(help=f"Run so many times and show how long it took. Default: 1, with --profile {_PROFILED_RUNS}."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Time every operator: medians over the runs, after one to warm up.")
    ] = False,
    top: Annotated[
        int, typer.Option(help="Show the largest K values of each output; with --profile, the K slowest operators.")
    ] = 0,
    shape: Shapes = None,
    as_json: Json = False,
) -> None:
    """Run a compiled model on this machine."""
    from mlforge.runtime.fill import fill as filled
    from mlforge.runtime.npz import read_npz, write_npz
    from mlforge.support.atomic import check_writable

    runs = repeat if repeat is not None else _PROFILED_RUNS if profile else 1
    if runs < 1 or top < 0:
        raise OptionError("--repeat counts from 1 and --top from 0")
    if outputs is not None:
        check_writable(outputs)
    with stage(f"loading {artifact}"):
        profiled = _profiled(artifact, module, shape) if profile else None
        compiled: Runnable = profiled or _load(artifact, module, shape)
    given = filled(compiled.inputs, fill, seed) if inputs is None else read_npz(inputs, compiled.inputs)
    if profiled is not None:
        measured = profiled.profile(given, runs)
        results, times, operators = measured.outputs, measured.runs, measured.operators
    else:
        operators = None
        results, times = _timed(compiled, given, runs, artifact)
    if outputs is not None:
        write_npz(outputs, results)
    _report(compiled, results, times, operators, top, as_json)


def _timed(
    compiled: Runnable, given: Mapping[str, Array], runs: int, artifact: Path
) -> tuple[Mapping[str, Array], tuple[float, ...]]:
    call = compiled.bind(given)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        status = call()
        times.append(time.perf_counter() - start)
        if status != 0:
            raise RunError(f"the model returned status {status}", place=str(artifact))
    return call.outputs, tuple(times)


def _load(artifact: Path, module: str | None, shape: list[str] | None) -> Runnable:
    from mlforge.archive.load import load, load_factory

    if _is_compiled(artifact, module, shape):
        return load(artifact, module)
    return load_factory(_built(artifact, shape))


def _profiled(artifact: Path, module: str | None, shape: list[str] | None) -> ProfiledModule | GraphModule:
    from mlforge.archive.profile import load_profiled, profiled_factory

    if _is_compiled(artifact, module, shape):
        return load_profiled(artifact, module)
    return profiled_factory(_built(artifact, shape))


def _is_compiled(artifact: Path, module: str | None, shape: list[str] | None) -> bool:
    """Tell an archive or library from a model, and refuse options of the other kind."""
    from mlforge.archive.load import artifact_kind

    if artifact_kind(artifact) != "model":
        if shape:
            raise OptionError("--shape is for models; the shapes of an archive are fixed")
        return True
    if module is not None:
        raise OptionError("--module is for archives and shared libraries; a model is one module")
    return False


def _built(model: Path, shape: list[str] | None) -> Factory:
    from mlforge.compiler import build
    from mlforge.frontend import import_model

    mod, params = import_model(model, shapes=parse_shapes(shape))
    return build(mod, "c", params)


def _report(
    compiled: Runnable,
    results: Mapping[str, Array],
    times: Sequence[float],
    operators: Sequence[OperatorTime] | None,
    top: int,
    as_json: bool,
) -> None:
    values = top if operators is None else 0
    tensors = [_summary(info, results[info.name], values) for info in compiled.outputs]
    milliseconds = {
        "runs": len(times),
        "median_ms": statistics.median(times) * 1e3,
        "min_ms": min(times) * 1e3,
        "mean_ms": statistics.fmean(times) * 1e3,
    }
    if as_json:
        document: dict[str, Any] = {"outputs": tensors, "time": milliseconds}
        if operators is not None:
            document["operators"] = as_rows(operators, top)
        print_json(document)
        return
    print_table(
        "outputs",
        ("name", "type", "smallest", "largest", "mean"),
        [(item["name"], describe_tensor(item), item["min"], item["max"], item["mean"]) for item in tensors],
    )
    for item in tensors:
        if values:
            rows = [(entry["index"], entry["value"], entry["real"]) for entry in item["top"]]
            print_table(f"largest of {item['name']}", ("index", "value", "real value"), rows)
    if operators is not None:
        print_profile(operators, top)
    if len(times) > 1:
        print_table("time", ("runs", "median ms", "smallest ms", "mean ms"), [tuple(milliseconds.values())])


def _summary(info: Any, array: Array, top: int) -> dict[str, Any]:
    import numpy as np

    values = array.astype(np.float64).ravel()
    # stable: of equal values the first comes first
    order = np.argsort(-values, kind="stable")[:top]
    scale, zero = info.scale, info.zero_point or 0
    return {
        "name": info.name,
        "dtype": info.dtype,
        "shape": list(info.shape),
        "min": float(values.min()) if values.size else None,
        "max": float(values.max()) if values.size else None,
        "mean": float(values.mean()) if values.size else None,
        "top": [
            {
                "index": int(index),
                "value": array.ravel()[index].item(),
                "real": None if scale is None else scale * (float(values[index]) - zero),
            }
            for index in order
        ],
    }
