"""``mlfc run``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mlfc.cli.artifacts import begin_state, compiled_model, core_warnings, given_inputs, is_compiled, save_state
from mlfc.cli.board_run import DrivenRun, built_firmware, check_vectors, run_driven, run_firmware
from mlfc.cli.options import Inputs, choose_threads, chosen_board
from mlfc.cli.profiling import ProfileFiles, known_peaks
from mlfc.cli.run_tables import as_rows, print_outputs, print_profile, summaries
from mlfc.cli.tables import print_json, print_table
from mlfc.cli.tune import require_tunable
from mlfc.errors import MlfcError, OptionError, RunError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.library.peaks import Peaks
    from mlfc.micro.board.board import Board
    from mlfc.micro.run.emulator import EmulatedModule
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
_PROFILED_RUNS = 10
_THIS_MACHINE = "host"


def run_model(
    artifact: Annotated[
        Path,
        typer.Argument(
            help="An archive or shared library; a model is compiled first, for this processor or the level of MLFC_CPU."
        ),
    ],
    *,
    inputs: Path | None = None,
    outputs: Path | None = None,
    fill: str = "random",
    seed: int = 0,
    module: str | None = None,
    repeat: Annotated[
        int | None,
        typer.Option(help=f"Run so many times and show how long it took. Default: 1, with --profile {_PROFILED_RUNS}."),
    ] = None,
    profile: bool = False,
    profile_html: Path | None = None,
    trace: Path | None = None,
    top: int = 0,
    device: str | None = None,
    board: str | None = None,
    trust_board: bool = False,
    selftest: bool = False,
    memory: bool = False,
    host_driven: bool = False,
    port: str | None = None,
    tensors: Path | None = None,
    fixed: Inputs,
    state_in: Path | None = None,
    state_out: Path | None = None,
    memory_limit: int | None = None,
    turn_limit: int | None = None,
    threads: int | None = None,
    tuned: Path | None = None,
    as_json: bool = False,
) -> None:
    """Run a compiled model on this machine, or as firmware under the emulator of a board."""
    require_tunable(artifact, tuned)
    choose_threads(threads, on_board=board is not None or host_driven or selftest)
    compiling = {"parallel": None if threads is None else threads != 1, "tuned": tuned}
    files = ProfileFiles.of(profile_html, trace, elsewhere=board is not None or host_driven or selftest)
    profile = profile or files.are_asked
    runs = _counted_runs(repeat, top, profile)
    _check_driving(host_driven, selftest or memory, port is not None or tensors is not None)
    on_board = chosen_board(board or (_THIS_MACHINE if host_driven or selftest else None), trust_board)
    devices = _devices(device, elsewhere=board is not None or host_driven or selftest)
    warnings = {} if on_board is None else core_warnings(artifact, on_board, board or _THIS_MACHINE, module)
    if selftest and on_board:
        if inputs or outputs or repeat is not None or profile or fixed != Inputs():
            raise OptionError(
                "option --selftest uses the archive's own inputs and outputs",
                place="--selftest",
                next_step="Remove --inputs, --outputs, --repeat, --profile, --shape, --value, --state and --state-init",
            )
        check_vectors(artifact, on_board, board or _THIS_MACHINE, module, as_json, warnings)
        return
    if memory and (board is None or profile):
        raise OptionError(
            "option --memory requires --board and excludes --profile",
            place="--memory",
            next_step="Add --board, or remove --profile",
        )
    _check_writable(outputs, tensors, state_out, profile_html, trace)
    if (state_in or state_out) and (on_board is not None or profile):
        raise OptionError(
            "options --state-in and --state-out require a run on this machine without --profile",
            next_step="Remove them, or --board, --host-driven and --profile",
        )
    limits = _limits(memory_limit, turn_limit, on_board)
    given = partial(given_inputs, inputs, fill, seed)
    if host_driven and on_board:
        wanted = DrivenRun(port, outputs, tensors, profile, repeat or 1, top, as_json, warnings)
        run_driven(artifact, on_board, module, fixed, given, wanted)
    elif on_board is not None:
        if repeat is not None:
            raise OptionError("option --repeat has no effect under an emulator: every run takes the same instructions")
        firmware = built_firmware(artifact, on_board, module, fixed, profile=profile, tuned=tuned)
        run_firmware(
            firmware,
            given(firmware.inputs, *_sizes(firmware, artifact, fixed)),
            outputs,
            top,
            as_json,
            memory=firmware.memory if memory else None,
            warnings=warnings,
        )
    elif profile:
        with stage(f"loading {artifact}"):
            profiled = _limited(_profiled(artifact, module, fixed, devices, compiling), limits)
        measured = profiled.profile(given(profiled.inputs, *_sizes(profiled, artifact, fixed)), runs)
        peaks = known_peaks(devices)
        files.write(artifact.name, measured, peaks)
        _report(profiled, measured.outputs, measured.runs, (measured.operators, peaks), outputs, top, as_json)
    else:
        with stage(f"loading {artifact}"):
            compiled, elements = _load(artifact, module, fixed, devices, inputs, compiling)
        begin_state(_limited(compiled, limits), state_in)
        if len(compiled.state) and inputs is not None:
            results, times = _steps(compiled, inputs, runs, artifact)
        else:
            made = given(compiled.inputs, *_sizes(compiled, artifact, fixed), elements)
            results, times = _timed(compiled, made, runs, artifact)
        if state_out is not None:
            save_state(compiled, state_out)
        _report(compiled, results, times, None, outputs, top, as_json)


def _check_writable(*files: Path | None) -> None:
    from mlfc.support.atomic import check_writable

    for path in files:
        if path is not None:
            check_writable(path)


def _counted_runs(repeat: int | None, top: int, profile: bool) -> int:
    """Return how often to run; raise OptionError if that or `top` is no number of things."""
    runs = repeat if repeat is not None else _PROFILED_RUNS if profile else 1
    if runs < 1 or top < 0:
        raise OptionError("--repeat must be at least 1, and --top at least 0")
    return runs


def _limits(memory_limit: int | None, turn_limit: int | None, board: Board | None) -> dict[str, int]:
    """Return the limits that the user sets."""
    asked = {"memory_limit": memory_limit, "turn_limit": turn_limit}
    given = {name: value for name, value in asked.items() if value is not None}
    if given and board is not None:
        raise OptionError(
            "options --memory-limit and --turn-limit require a run on this machine", next_step="Leave them out"
        )
    return given


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


def _check_driving(host_driven: bool, on_its_own: bool, is_connected: bool) -> None:
    """Raise OptionError for options that only a device driven by the host has, or one that runs on its own."""
    if host_driven and on_its_own:
        raise OptionError(
            "option --host-driven excludes --selftest and --memory: the host runs single operators",
            place="--host-driven",
            next_step="Remove --selftest and --memory",
        )
    if not host_driven and is_connected:
        raise OptionError("options --port and --tensors require --host-driven", next_step="Add --host-driven")


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


def _devices(text: str | None, *, elsewhere: bool) -> tuple[Device, ...]:
    """Return the device that a user names, if one is."""
    from mlfc.runtime.devices.device import device

    if text is None:
        return ()
    if elsewhere:
        raise OptionError(
            "option --device excludes --board, --host-driven and --selftest", place="--device", next_step="Leave it out"
        )
    kind, colon, index = text.partition(":")
    if colon and not (index.isascii() and index.isdigit() and len(index) < 4):
        raise OptionError(
            f"expected a device such as {kind}:0, got '{text}'", place="--device", next_step=f"Write {kind}:0"
        )
    return (device(kind, int(index or 0)),)


def _target(devices: Sequence[Device]) -> str:
    """Return the target of a model that is to run on these devices, and nowhere else."""
    from mlfc.target.defaults import this_processor

    kinds = [device.kind for device in devices if device.kind != "cpu"]
    return kinds[0] if kinds else this_processor()


def _sizes(
    compiled: Runnable | ProfiledModule | GraphModule | EmulatedModule, artifact: Path, fixed: Inputs
) -> tuple[Mapping[str, tuple[int, int]] | None, Sequence[str]]:
    """Return the bounds of a model's open extents, and what the user says of the shapes of its inputs."""
    extents = getattr(compiled, "extents", None)
    if not extents and not getattr(compiled, "has_containers", False):
        is_compiled(artifact, None, fixed)
    return extents, fixed.shape or () if is_compiled(artifact, None, fixed, takes_shapes=True) else ()


def _load(
    artifact: Path,
    module: str | None,
    fixed: Inputs,
    devices: Sequence[Device],
    inputs: Path | None,
    compiling: Mapping[str, Any],
) -> tuple[Runnable, Mapping[str, Sequence[int | None]]]:
    """Return what is to run, and what is known of the extents of tensors in its sequences and optionals.

    A model whose open shapes cannot be compiled gets those of the inputs in a file.
    """
    from mlfc.archive.loading import load
    from mlfc.archive.read.load import load_factory
    from mlfc.verify.contained import element_shapes

    if is_compiled(artifact, module, fixed, takes_shapes=True):
        return load(artifact, module, devices), {}
    try:
        factory = compiled_model(artifact, fixed, _target(devices), **compiling)
    except MlfcError:
        shaped = None if inputs is None else fixed.with_shapes_of(inputs)
        if shaped is None:
            raise
        factory = compiled_model(artifact, shaped, _target(devices), "aot", **compiling)
    return load_factory(factory, devices), element_shapes(factory.module)


def _profiled(
    artifact: Path, module: str | None, fixed: Inputs, devices: Sequence[Device], compiling: Mapping[str, Any]
) -> ProfiledModule | GraphModule | ProfiledVm:
    from mlfc.archive.describe.profile import load_profiled, profiled_factory

    if is_compiled(artifact, module, fixed, takes_shapes=True):
        return load_profiled(artifact, module, devices)
    return profiled_factory(compiled_model(artifact, fixed, _target(devices), **compiling), devices)


def _report(
    compiled: Runnable,
    results: Mapping[str, Array],
    times: Sequence[float],
    operators: tuple[Sequence[OperatorTime], Peaks | None] | None,
    outputs: Path | None,
    top: int,
    as_json: bool,
) -> None:
    from mlfc.runtime.tensor.npz import flattened, write_npz
    from mlfc.support.containers import ContainerInfo
    from mlfc.support.tensor_info import TensorInfo

    listed = {info.name for info in compiled.outputs if isinstance(info, ContainerInfo)}
    names = {info.name: flattened({info.name: results[info.name]}) for info in compiled.outputs}
    results = flattened(results)
    if outputs is not None:
        write_npz(outputs, results)
    fixed = [info for info in compiled.outputs if info.is_static]
    steps = {len(results[info.name]) for info in fixed if results[info.name].shape != info.shape}
    last = {name: array[-1] for name, array in results.items()} if steps else results
    infos = [
        TensorInfo(name, array.shape, info.dtype) if info.name in listed else info.of_shape(last[name].shape) or info
        for info in compiled.outputs
        for name, array in names[info.name].items()
    ]
    tensors = summaries(infos, last, top if operators is None else 0)
    milliseconds = {
        "runs": len(times),
        "median_ms": statistics.median(times) * 1e3,
        "min_ms": min(times) * 1e3,
        "mean_ms": statistics.fmean(times) * 1e3,
    }
    if as_json:
        document: dict[str, Any] = {"outputs": tensors, "time": milliseconds}
        if steps:
            document["steps"] = steps.pop()
        if operators is not None:
            times_of, peaks = operators
            document["operators"] = as_rows(times_of, top, peaks)
            document["peaks"] = peaks and peaks.to_json()
        print_json(document)
        return
    if steps:
        typer.echo(f"{steps.pop()} steps; of the last one:")
    print_outputs(tensors)
    if operators is not None:
        print_profile(operators[0], top, operators[1])
    if len(times) > 1:
        print_table("time", ("runs", "median ms", "smallest ms", "mean ms"), [tuple(milliseconds.values())])
