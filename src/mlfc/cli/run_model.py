"""``mlfc run``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlfc.cli.artifacts import compiled_model, input_sizes, is_compiled
from mlfc.cli.board_run import run_elsewhere
from mlfc.cli.options import Inputs, chosen_board, given_options
from mlfc.cli.run_data import DataOptions, RunResults, Sets
from mlfc.cli.run_tables import as_rows, known_peaks, print_profile, write_profile
from mlfc.cli.tables import print_json, print_table
from mlfc.errors import MlfcError, OptionError, RunError
from mlfc.support.progress import bar, stage

if TYPE_CHECKING:
    from mlfc.library.peaks import Peaks
    from mlfc.runtime import GraphModule, OperatorTime, ProfiledModule, Runnable
    from mlfc.runtime.devices.device import Device
    from mlfc.runtime.executors.vm.vm_model import ProfiledVm
    from mlfc.support.tensor_info import Array

_PROFILED_RUNS = 10
THIS_MACHINE = "host"
EXAMPLES = (
    "mlfc run kws.tar --inputs in.npz --outputs out.npz",
    "mlfc run kws.tar --fill random --seed 1 --repeat 100",
    "mlfc run kws.tflite --top 3",
    "mlfc run mobilenet.tar --inputs cat.jpg --scale 1/255 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225",
    "mlfc run mobilenet_int8.tar --inputs photos/ --labels labels.txt",
    "mlfc run kws_int8.tar --inputs features.npz --outputs scores.npz --real",
    "mlfc run wakeword.tar --inputs frames.npz --outputs scores.npz",
    "mlfc run kws.tar --profile --repeat 100 --top 5",
    "mlfc run resnet18.onnx --threads 2 --profile-html profile.html --trace trace.json",
    "mlfc run resnet18.onnx --device opencl",
    "mlfc run resnet18.onnx --tuned tune.jsonl --repeat 100",
    "mlfc run kws.tflite --board mps2-an386 --profile",
    "mlfc run kws.tar --board mps3-an547 --selftest",
    "mlfc run kws_graph.tar --board mps2-an386 --host-driven --profile",
)


@dataclass(frozen=True)
class RunOptions(DataOptions):
    """Options of all kinds of runs."""

    top: Annotated[
        int,
        typer.Option(help="Show the largest K values of each output; with --profile, the K slowest operators."),
    ] = 0
    module: str | None = None
    repeat: Annotated[
        int | None,
        typer.Option(help=f"Number of runs; shows their time. Default: 1, with --profile {_PROFILED_RUNS}."),
    ] = None
    profile: bool = False
    profile_html: Path | None = None
    trace: Path | None = None
    device: str | None = None
    board: str | None = None
    trust_board: bool = False
    selftest: bool = False
    memory: bool = False
    host_driven: bool = False
    port: str | None = None
    tensors: Path | None = None
    state_in: Path | None = None
    state_out: Path | None = None
    memory_limit: int | None = None
    turn_limit: int | None = None
    threads: int | None = None
    tuned: Path | None = None
    as_json: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """True for runs as firmware, in an emulator or on a device, instead of in this process."""
        return self.board is not None or self.host_driven or self.selftest

    @property
    def board_name(self) -> str:
        """Name of the board, for messages."""
        return self.board or THIS_MACHINE

    @property
    def is_profiled(self) -> bool:
        """True if an option requests times of operators."""
        return self.profile or self.profile_html is not None or self.trace is not None

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self.repeat if self.repeat is not None else _PROFILED_RUNS if self.is_profiled else 1

    @property
    def limits(self) -> dict[str, int]:
        """Limits that the user set."""
        return given_options({"memory_limit": self.memory_limit, "turn_limit": self.turn_limit})

    @property
    def compiling(self) -> dict[str, Any]:
        """Options of `build` for a model that is compiled to run here."""
        return {"parallel": None if self.threads is None else self.threads != 1, "tuned": self.tuned}

    def devices(self) -> tuple[Device, ...]:
        """Return the device that the user selected, if any."""
        if self.device is None:
            return ()
        from mlfc.runtime.devices.device import device

        kind, colon, index = self.device.partition(":")
        if colon and not (index.isascii() and index.isdigit() and len(index) < 4):
            cause = f"expected a device such as {kind}:0, got '{self.device}'"
            raise OptionError(cause, place="--device", next_step=f"Write {kind}:0")
        return (device(kind, int(index or 0)),)

    def check(self) -> None:
        """Raise OptionError for options that this kind of run excludes, and for numbers out of range."""
        if (self.profile_html or self.trace) and self.is_elsewhere:
            raise OptionError(
                "options --profile-html and --trace require a run on this machine",
                next_step="Remove them, or --board, --host-driven and --selftest",
            )
        self.check_data()
        if self.runs < 1:
            raise OptionError("--repeat must be at least 1")
        if self.host_driven and (self.selftest or self.memory):
            raise OptionError(
                "option --host-driven excludes --selftest and --memory: the host runs single operators",
                place="--host-driven",
                next_step="Remove --selftest and --memory",
            )
        if not self.host_driven and (self.port is not None or self.tensors is not None):
            raise OptionError("options --port and --tensors require --host-driven", next_step="Add --host-driven")
        if self.device is not None and self.is_elsewhere:
            cause = "option --device excludes --board, --host-driven and --selftest"
            raise OptionError(cause, place="--device", next_step="Remove it")

    def check_run(self) -> None:
        """Raise OptionError for options of some runs only, and for files that cannot be written; not for self-tests."""
        from mlfc.support.atomic import check_writable

        if self.memory and (self.board is None or self.is_profiled):
            cause = "option --memory requires --board and excludes --profile"
            raise OptionError(cause, place="--memory", next_step="Add --board, or remove --profile")
        for path in (self.outputs, self.tensors, self.state_out, self.profile_html, self.trace):
            if path is not None:
                check_writable(path)
        if (self.state_in or self.state_out) and (self.is_elsewhere or self.is_profiled):
            raise OptionError(
                "options --state-in and --state-out require a run on this machine without --profile",
                next_step="Remove them, or --board, --host-driven and --profile",
            )
        if self.limits and self.is_elsewhere:
            raise OptionError(
                "options --memory-limit and --turn-limit require a run on this machine", next_step="Remove them"
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
    """Run a model on this machine, or as firmware.

    Firmware runs in the emulator of a board.
    """
    from mlfc.archive.read.load import artifact_kind
    from mlfc.runtime.threads import set_num_threads

    if options.tuned is not None and artifact_kind(artifact) != "model":
        raise OptionError(
            "option --tuned requires a model",
            place="--tuned",
            next_step="Compile the model with --tuned, or remove it",
        )
    if options.threads is not None:
        if options.is_elsewhere:
            raise OptionError("firmware has no threads", place="--threads", next_step="Remove --threads or the board")
        set_num_threads(options.threads)
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
    from mlfc.archive.describe.profile import load_profiled, profiled_factory
    from mlfc.verify.inputs import naming_inputs

    profiled: ProfiledModule | GraphModule | ProfiledVm
    with stage(f"loading {artifact}"):
        if is_compiled(artifact, options.module, fixed, takes_shapes=True):
            profiled = load_profiled(artifact, options.module, devices)
        else:
            factory = compiled_model(artifact, fixed, _target(devices), **options.compiling)
            profiled = profiled_factory(factory, devices)
        _limit(profiled, options.limits)
    given = options.only_set(profiled, *input_sizes(profiled, artifact, fixed))
    with naming_inputs(artifact, profiled.inputs, is_generated=options.inputs is None):
        measured = profiled.profile(given, options.runs)
    peaks = known_peaks(devices)
    write_profile(options.profile_html, options.trace, artifact.name, measured, peaks)
    results = options.results(profiled, [("", given)], [measured.outputs], keeps_state=False)
    _report(results, measured.runs, (measured.operators, peaks), options)


def _run_here(artifact: Path, options: RunOptions, fixed: Inputs, devices: Sequence[Device]) -> None:
    """Run on this machine."""
    from mlfc.runtime.tensor.npz import read_npz, write_npz
    from mlfc.verify.inputs import naming_inputs

    with stage(f"loading {artifact}"):
        compiled, elements = _load(artifact, options, fixed, devices)
    _limit(compiled, options.limits)
    for flag, path in (("--state-in", options.state_in), ("--state-out", options.state_out)):
        if path is not None and not len(compiled.state):
            raise OptionError(
                f"option {flag} requires a model with state",
                next_step="Compile it with --state INPUT=OUTPUT, or remove it",
            )
    if options.state_in is not None:
        compiled.state.update(read_npz(options.state_in, compiled.state.infos))
    sizes = *input_sizes(compiled, artifact, fixed), elements
    if options.repeat is None:
        sets = options.sets(compiled, *sizes)
    else:
        sets = [("repeated", options.only_set(compiled, *sizes))]
    with naming_inputs(artifact, compiled.inputs, is_generated=options.inputs is None):
        runs, times = _timed(compiled, sets, options.runs, artifact)
    if options.state_out is not None:
        write_npz(options.state_out, dict(compiled.state))
    results = options.results(compiled, sets, runs, keeps_state=len(compiled.state) > 0)
    _report(results, times, None, options)


def _limit(model: Runnable, limits: Mapping[str, int]) -> None:
    """Limit the runs of a model in the virtual machine, if limits are set."""
    from mlfc.runtime.executors.vm.vm_model import VmModel

    if not limits:
        return
    if not isinstance(model, VmModel):
        raise OptionError(
            "options --memory-limit and --turn-limit require a model for the virtual machine",
            next_step="Remove them: other code uses the memory and the time that inspect shows",
        )
    model.set_limits(**limits)


def _timed(
    compiled: Runnable, sets: Sets, repeat: int, artifact: Path
) -> tuple[list[Mapping[str, Array]], tuple[float, ...]]:
    """Run a model on sets of inputs in order, each `repeat` times; return the outputs of each, and all times."""
    found: list[Mapping[str, Array]] = []
    times = []
    with bar(f"running {artifact.name}") if len(sets) > 1 else nullcontext(lambda *_: None) as say:
        for done, (name, given) in enumerate(sets):
            say(done, len(sets), name)
            call = compiled.bind(given)
            for _ in range(repeat):
                start = time.perf_counter()
                status = call()
                times.append(time.perf_counter() - start)
                if status != 0:
                    raise RunError(f"the model returned status {status}", place=str(artifact))
            found.append(call.outputs)
    return found, tuple(times)


def _target(devices: Sequence[Device]) -> str:
    """Return the target of a model that runs on exactly these devices."""
    from mlfc.target.target import this_processor

    kinds = [device.kind for device in devices if device.kind != "cpu"]
    return kinds[0] if kinds else this_processor()


def _load(
    artifact: Path, options: RunOptions, fixed: Inputs, devices: Sequence[Device]
) -> tuple[Runnable, Mapping[str, Sequence[int | None]]]:
    """Return the loaded model, and the known dimension sizes of tensors in its sequences and optionals.

    A model whose dynamic dimensions cannot be compiled gets the shapes of the inputs in a file.
    """
    from mlfc.archive.loading import load
    from mlfc.archive.read.load import load_factory
    from mlfc.verify.inputs import element_shapes

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


def _report(
    results: RunResults,
    times: Sequence[float],
    operators: tuple[Sequence[OperatorTime], Peaks | None] | None,
    options: RunOptions,
) -> None:
    milliseconds = {
        "runs": len(times),
        "median_ms": statistics.median(times) * 1e3,
        "min_ms": min(times) * 1e3,
        "mean_ms": statistics.fmean(times) * 1e3,
    }
    document = results.document(with_top=operators is None)
    if options.as_json:
        document["time"] = milliseconds
        if operators is not None:
            times_of, peaks = operators
            document["operators"] = as_rows(times_of, options.top, peaks)
            document["peaks"] = peaks and peaks.to_json()
        print_json(document)
        return
    results.print(document)
    if operators is not None:
        print_profile(operators[0], options.top, operators[1])
    if len(times) > 1:
        print_table("time", ("runs", "median ms", "smallest ms", "mean ms"), [tuple(milliseconds.values())])
