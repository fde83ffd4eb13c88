"""``mlfc run``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mlfc.cli.artifacts import begin_state, compiled_model, input_sizes, is_compiled, save_state
from mlfc.cli.board_run import run_elsewhere
from mlfc.cli.options import Inputs, choose_threads, chosen_board
from mlfc.cli.profiling import known_peaks, write_profile
from mlfc.cli.run_options import RunOptions
from mlfc.cli.run_tables import as_rows, print_outputs, print_profile, summaries
from mlfc.cli.tables import print_json, print_table
from mlfc.cli.tune import require_tunable
from mlfc.errors import MlfcError, OptionError, RunError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.library.peaks import Peaks
    from mlfc.runtime import GraphModule, OperatorTime, ProfiledModule, Runnable
    from mlfc.runtime.devices.device import Device
    from mlfc.runtime.executors.vm.profiled import ProfiledVm
    from mlfc.support.arrays import Array

Loaded = TypeVar("Loaded", bound="Runnable")
EXAMPLES = (
    "mlfc run kws.tar --inputs in.npz --outputs out.npz",
    "mlfc run kws.tar --fill random --seed 1 --repeat 100",
    "mlfc run kws.tflite --top 3",
    "mlfc run wakeword.tar --inputs frames.npz --outputs scores.npz",
    "mlfc run kws.tar --profile --repeat 100 --top 5",
    "mlfc run resnet18.onnx --threads 2 --profile-html profile.html --trace trace.json",
    "mlfc run resnet18.onnx --device opencl",
    "mlfc run resnet18.onnx --tuned tune.jsonl --repeat 100",
    "mlfc run kws.tflite --board mps2-an386 --profile",
    "mlfc run kws.tar --board mps3-an547 --selftest",
    "mlfc run kws_graph.tar --board mps2-an386 --host-driven --profile",
)


def run_model(
    artifact: Annotated[
        Path,
        typer.Argument(
            help="An archive or shared library; a model is compiled first, for this processor or the level of MLFC_CPU."
        ),
    ],
    *,
    options: RunOptions,
    fixed: Inputs,
) -> None:
    """Run a compiled model on this machine, or as firmware under the emulator of a board."""
    require_tunable(artifact, options.tuned)
    choose_threads(options.threads, on_board=options.is_elsewhere)
    options.check()
    if options.is_elsewhere:
        run_elsewhere(artifact, options, fixed)
        return
    chosen_board(None, options.trust_board)
    devices = options.devices()
    options.check_run()
    if options.is_profiled:
        _run_profiled(artifact, options, fixed, devices)
    else:
        _run_here(artifact, options, fixed, devices)


def _run_profiled(artifact: Path, options: RunOptions, fixed: Inputs, devices: Sequence[Device]) -> None:
    """Time every operator on this machine."""
    with stage(f"loading {artifact}"):
        profiled = _limited(_profiled(artifact, options, fixed, devices), options.limits)
    measured = profiled.profile(
        options.fill_inputs(profiled.inputs, *input_sizes(profiled, artifact, fixed)), options.runs
    )
    peaks = known_peaks(devices)
    write_profile(options.profile_html, options.trace, artifact.name, measured, peaks)
    _report(profiled, measured.outputs, measured.runs, (measured.operators, peaks), options)


def _run_here(artifact: Path, options: RunOptions, fixed: Inputs, devices: Sequence[Device]) -> None:
    """Run on this machine."""
    with stage(f"loading {artifact}"):
        compiled, elements = _load(artifact, options, fixed, devices)
    begin_state(_limited(compiled, options.limits), options.state_in)
    if len(compiled.state) and options.inputs is not None:
        results, times = _steps(compiled, options.inputs, options.runs, artifact)
    else:
        made = options.fill_inputs(compiled.inputs, *input_sizes(compiled, artifact, fixed), elements)
        results, times = _timed(compiled, made, options.runs, artifact)
    if options.state_out is not None:
        save_state(compiled, options.state_out)
    _report(compiled, results, times, None, options)


def _limited(model: Loaded, limits: Mapping[str, int]) -> Loaded:
    """Return a model whose runs in the virtual machine have these limits."""
    from mlfc.runtime.executors.vm.vm_model import VmModel

    if not limits:
        return model
    if not isinstance(model, VmModel):
        raise OptionError(
            "options --memory-limit and --turn-limit require a model for the virtual machine",
            next_step="Leave them out: other code takes the memory and the time that inspect shows",
        )
    model.set_limits(**limits)
    return model


def _steps(
    compiled: Runnable, inputs: Path, runs: int, artifact: Path
) -> tuple[Mapping[str, Array], tuple[float, ...]]:
    """Run a model with state on every set of inputs in a file, in order; outputs have the steps as their first axis."""
    import numpy as np

    from mlfc.verify.inputs import read_sets

    sets = [given for _, given in read_sets(inputs, compiled.inputs)]
    if len(sets) == 1:
        return _timed(compiled, sets[0], runs, artifact)
    found: list[Mapping[str, Array]] = []
    times: list[float] = []
    for given in sets:
        results, taken = _timed(compiled, given, 1, artifact)
        found.append(results)
        times += taken
    return {name: np.stack([results[name] for results in found]) for name in found[0]}, tuple(times)


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


def _target(devices: Sequence[Device]) -> str:
    """Return the target of a model that is to run on these devices, and nowhere else."""
    from mlfc.target.defaults import this_processor

    kinds = [device.kind for device in devices if device.kind != "cpu"]
    return kinds[0] if kinds else this_processor()


def _load(
    artifact: Path, options: RunOptions, fixed: Inputs, devices: Sequence[Device]
) -> tuple[Runnable, Mapping[str, Sequence[int | None]]]:
    """Return what is to run, and what is known of the extents of tensors in its sequences and optionals.

    A model whose open shapes cannot be compiled gets those of the inputs in a file.
    """
    from mlfc.archive.loading import load
    from mlfc.archive.read.load import load_factory
    from mlfc.verify.contained import element_shapes

    if is_compiled(artifact, options.module, fixed, takes_shapes=True):
        return load(artifact, options.module, devices), {}
    try:
        factory = compiled_model(artifact, fixed, _target(devices), **options.compiling)
    except MlfcError:
        shaped = None if options.inputs is None else fixed.with_shapes_of(options.inputs)
        if shaped is None:
            raise
        factory = compiled_model(artifact, shaped, _target(devices), "aot", **options.compiling)
    return load_factory(factory, devices), element_shapes(factory.module)


def _profiled(
    artifact: Path, options: RunOptions, fixed: Inputs, devices: Sequence[Device]
) -> ProfiledModule | GraphModule | ProfiledVm:
    from mlfc.archive.describe.profile import load_profiled, profiled_factory

    if is_compiled(artifact, options.module, fixed, takes_shapes=True):
        return load_profiled(artifact, options.module, devices)
    return profiled_factory(compiled_model(artifact, fixed, _target(devices), **options.compiling), devices)


def _report(
    compiled: Runnable,
    results: Mapping[str, Array],
    times: Sequence[float],
    operators: tuple[Sequence[OperatorTime], Peaks | None] | None,
    options: RunOptions,
) -> None:
    from mlfc.runtime.tensor.npz import flattened, write_npz
    from mlfc.support.containers import ContainerInfo
    from mlfc.support.tensor_info import TensorInfo

    listed = {info.name for info in compiled.outputs if isinstance(info, ContainerInfo)}
    names = {info.name: flattened({info.name: results[info.name]}) for info in compiled.outputs}
    results = flattened(results)
    if options.outputs is not None:
        write_npz(options.outputs, results)
    fixed = [info for info in compiled.outputs if info.is_static]
    steps = {len(results[info.name]) for info in fixed if results[info.name].shape != info.shape}
    last = {name: array[-1] for name, array in results.items()} if steps else results
    infos = [
        TensorInfo(name, array.shape, info.dtype) if info.name in listed else info.of_shape(last[name].shape) or info
        for info in compiled.outputs
        for name, array in names[info.name].items()
    ]
    tensors = summaries(infos, last, options.top if operators is None else 0)
    milliseconds = {
        "runs": len(times),
        "median_ms": statistics.median(times) * 1e3,
        "min_ms": min(times) * 1e3,
        "mean_ms": statistics.fmean(times) * 1e3,
    }
    if options.as_json:
        document: dict[str, Any] = {"outputs": tensors, "time": milliseconds}
        if steps:
            document["steps"] = steps.pop()
        if operators is not None:
            times_of, peaks = operators
            document["operators"] = as_rows(times_of, options.top, peaks)
            document["peaks"] = peaks and peaks.to_json()
        print_json(document)
        return
    if steps:
        typer.echo(f"{steps.pop()} steps; of the last one:")
    print_outputs(tensors)
    if operators is not None:
        print_profile(operators[0], options.top, operators[1])
    if len(times) > 1:
        print_table("time", ("runs", "median ms", "smallest ms", "mean ms"), [tuple(milliseconds.values())])
