"""What `mlfc report` measures for its page: what calls take, and how far layers are from their reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfc.cli.artifacts import given_inputs
from mlfc.cli.options import Inputs
from mlfc.cli.profiling import known_peaks
from mlfc.cli.verify import verdict
from mlfc.errors import OptionError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.archive.describe.measured import Costs, TensorDifference
    from mlfc.micro.board.board import Board
    from mlfc.verify import Comparison

_RUNS = 20


def costs_of(archive: Path, module: str, board: Board | None) -> Costs:
    """Run a module of an archive on made-up inputs, here or under a board's emulator; return what its calls took."""
    return _costs_here(archive, module) if board is None else _costs_on(archive, module, board)


def _costs_here(archive: Path, module: str) -> Costs:
    from mlfc.archive.describe.measured import MICROSECONDS, Costs
    from mlfc.archive.describe.profile import load_profiled
    from mlfc.runtime.executors.vm.profiled import ProfiledVm

    with stage(f"timing the operators of {module}"):
        model = load_profiled(archive, module)
        extents = model.extents if isinstance(model, ProfiledVm) else None
        profile = model.profile(given_inputs(None, "random", 0, model.inputs, extents), _RUNS)
    peaks = known_peaks(())
    where = "this machine" if peaks is None else peaks.processor
    calls = tuple(item.nanoseconds / 1e3 for item in profile.operators)
    return Costs(where, MICROSECONDS, calls, profile.operators, peaks)


def _costs_on(archive: Path, module: str, board: Board) -> Costs:
    from mlfc.archive.describe.measured import INSTRUCTIONS, Costs
    from mlfc.micro.run.emulator import emulated_archive

    with stage(f"counting the instructions of {module} on {board.name}"):
        firmware = emulated_archive(archive, board, module, profile=True)
        run = firmware.measure(given_inputs(None, "random", 0, firmware.inputs, firmware.extents))
    return Costs(board.name, INSTRUCTIONS, tuple(map(float, run.operators)))


def compared(model: Path, inputs: Inputs, target: str, board: Board | None) -> Comparison:
    """Compare every layer of a model with its reference."""
    from mlfc.verify import verify

    return verify(model, layers=True, target=target, board=board, progress=True, **inputs.keywords())


def differences(found: Comparison) -> Mapping[str, TensorDifference]:
    """Return the differences of a comparison as a page shows them, by tensor; of outputs, of the code that ships."""
    from mlfc.archive.describe.measured import TensorDifference

    return {
        item.tensor: TensorDifference(item.tensor, item.largest, item.tolerance, item.is_within, verdict(item))
        for item in (*found.layers, *found.groups, *found.outputs)
    }


def require_one_to_measure(kind: str, **asked: Any) -> None:
    """Raise OptionError for options that take more than the artifact is: `asked` by option."""
    for option, is_asked in asked.items():
        if is_asked and kind != "model":
            raise OptionError(
                f"option --{option} requires a model, got {'an' if kind[0] == 'a' else 'a'} {kind}",
                place=f"--{option}",
                next_step="Give the model that it was compiled from",
            )
