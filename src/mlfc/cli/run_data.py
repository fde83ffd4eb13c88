"""Inputs and results of ``mlfc run`` and ``mlfc project run``: sets from files, real values, class labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mlfc.cli.artifacts import generated_inputs
from mlfc.cli.options import numbers
from mlfc.cli.run_tables import print_outputs, print_sets, summaries
from mlfc.errors import InputError, OptionError
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.runtime.modules.runnable import Computes
    from mlfc.support.tensor_info import Array
    from mlfc.verify.media import ImageScaling

_MOST_LABELS = 1 << 24  # bytes
_USUAL_TOP = 5
Sets = list[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class DataOptions:
    """Options of inputs and results of a run."""

    inputs: Path | None = None
    outputs: Path | None = None
    fill: str = "random"
    seed: int = 0
    real: bool = False
    scale: str | None = None
    mean: str | None = None
    std: str | None = None
    top: int = 0
    labels: Path | None = None

    @property
    def shown(self) -> int:
        """Number of the largest values to show of each output."""
        return self.top or (_USUAL_TOP if self.labels is not None else 0)

    @property
    def scaling(self) -> ImageScaling:
        """Normalization of images and sound."""
        from mlfc.verify.media import ImageScaling

        mean, std = numbers("--mean", self.mean, (0.0,)), numbers("--std", self.std, (1.0,))
        scale = numbers("--scale", self.scale, ())
        if len(scale) > 1:
            raise OptionError(f"expected one number, got '{self.scale}'", place="--scale")
        return ImageScaling(mean, std, *scale)

    def check_data(self) -> None:
        """Raise OptionError for options that exclude each other or are out of range."""
        from mlfc.verify.media import MEDIA

        if self.top < 0:
            raise OptionError("--top must be at least 0")
        is_media = self.inputs is not None and (self.inputs.suffix.lower() in MEDIA or self.inputs.is_dir())
        if not is_media and (self.scale or self.mean or self.std):
            raise OptionError(
                "options --scale, --mean and --std require --inputs with an image, a WAV file or a folder",
                next_step="Remove them, or scale the arrays yourself",
            )
        self.scaling  # noqa: B018  (raises for wrong numbers)

    def sets(self, model: Computes, *sizes: Any) -> Sets:
        """Return named input sets of a model; `sizes` are further arguments of `generated_inputs`."""
        from mlfc.runtime.tensor.arrays import require_real
        from mlfc.verify.inputs import read_sets
        from mlfc.verify.media import note

        if self.real:
            require_real(model)
        if self.inputs is None:
            return [("generated", generated_inputs(self.fill, self.seed, model.inputs, *sizes))]
        found: Sets = [*read_sets(self.inputs, model.inputs, self.scaling, real=self.real)]
        if len(model.inputs) == 1 and (text := note(self.inputs, model.inputs[0], self.scaling)):
            typer.echo(printable(text), err=True)
        return found

    def only_set(self, model: Computes, *sizes: Any) -> Mapping[str, Any]:
        """Return the inputs of a model for a profile; raise OptionError for several sets."""
        sets = self.sets(model, *sizes)
        if len(sets) > 1:
            raise OptionError(
                f"options --profile and --repeat require one set of inputs, got {len(sets)}",
                place=str(self.inputs),
                next_step="Remove them, or pass a single set",
            )
        return sets[0][1]

    def results(
        self, model: Computes, sets: Sets, runs: Sequence[Mapping[str, Any]], *, keeps_state: bool
    ) -> RunResults:
        """Return the results of runs on sets of inputs, written to the file of --outputs."""
        from mlfc.runtime.tensor.arrays import real_outputs
        from mlfc.runtime.tensor.npz import flattened, write_npz

        if self.real:
            runs = [real_outputs(run, model.outputs) for run in runs]
        found = RunResults(model, [name for name, _ in sets], runs, self, keeps_state, self._labels(flattened(runs[0])))
        if self.outputs is not None:
            write_npz(self.outputs, found.joined())
        return found

    def _labels(self, results: Mapping[str, Array]) -> list[str] | None:
        """Return the class labels; raise InputError unless they match an output."""
        if self.labels is None:
            return None
        from mlfc.support.plain_file import read_small

        data = read_small(self.labels, _MOST_LABELS, lambda cause: InputError(cause, place=str(self.labels)))
        found = [line.strip() for line in data.decode("utf-8-sig", "replace").rstrip().splitlines()]
        if not any(array.size == len(found) for array in results.values()):
            sizes = ", ".join(f"{name}: {array.size:,}" for name, array in results.items())
            raise InputError(
                f"expected as many labels as an output has values ({sizes}), got {len(found):,}",
                place=str(self.labels),
                next_step="Write one label a line",
            )
        return found


@dataclass(frozen=True, eq=False)
class RunResults:
    """Results of runs on sets of inputs, which are steps of a sequence if the model keeps state."""

    model: Computes
    names: Sequence[str]
    runs: Sequence[Mapping[str, Any]]
    options: DataOptions
    keeps_state: bool
    labels: Sequence[str] | None = None

    def joined(self) -> dict[str, Array]:
        """Return the arrays of all runs by their names in a file.

        Runs of a model of batch 1 are one batch; others have a leading axis. Arrays of different shapes stay separate.
        """
        import numpy as np

        from mlfc.runtime.tensor.npz import flattened

        if len(self.runs) == 1:
            return flattened(self.runs[0])
        is_batch = not self.keeps_state and all(
            info.shape[:1] == (1,) for info in (*self.model.inputs, *self.model.outputs)
        )
        found: dict[str, Any] = {}
        for name in self.runs[0]:
            arrays = [run[name] for run in self.runs]
            is_alike = len({array.shape for array in arrays}) == 1
            found[name] = (np.concatenate if is_batch else np.stack)(arrays) if is_alike else arrays
        return flattened(found)

    def _summaries(self, run: Mapping[str, Any], top: int) -> list[dict[str, Any]]:
        from mlfc.runtime.tensor.npz import flattened
        from mlfc.support.tensor_info import ContainerInfo, TensorInfo

        infos = []
        for info in self.model.outputs:
            for name, array in flattened({info.name: run[info.name]}).items():
                if isinstance(info, ContainerInfo):
                    infos.append(TensorInfo(name, array.shape, info.dtype))
                    continue
                known = replace(info, shape=array.shape)
                is_real = self.options.real and info.scale is not None
                infos.append(replace(known, dtype="float32", scale=None, zero_point=None) if is_real else known)
        return summaries(infos, flattened(run), top, self.labels)

    def document(self, *, with_top: bool = True) -> dict[str, Any]:
        """Return the results for JSON."""
        top = self.options.shown if with_top else 0
        every = [self._summaries(run, top) for run in (self.runs if top else self.runs[-1:])]
        found: dict[str, Any] = {"outputs": every[-1]}
        if len(self.runs) > 1:
            found["steps" if self.keeps_state else "sets"] = len(self.runs)
            if top:
                pairs = zip(self.names, every, strict=True)
                found["top"] = [
                    {"inputs": name, **{item["name"]: item["top"] for item in items}} for name, items in pairs
                ]
        return found

    def print(self, document: Mapping[str, Any]) -> None:
        """Print the result of `document`."""
        if len(self.runs) > 1:
            kind = "steps" if self.keeps_state else "sets of inputs"
            typer.echo(f"{len(self.runs)} {kind}; results of the last one:")
        if "top" not in document:
            print_outputs(document["outputs"])
            return
        print_outputs([{**item, "top": []} for item in document["outputs"]])
        print_sets(document["top"])
