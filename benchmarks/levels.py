"""Multi-level libraries compared with libraries for one processor, by C and by LLVM: latency and size."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from rich.table import Table

import mlfc
from benchmarks.llvm import paired
from benchmarks.models import Model, random_inputs
from mlfc.support.platforms import this_platform
from mlfc.target.features import LEVEL_VARIABLE, LEVELS, level_here

NATIVE = ("-march=native",)


def _exported(model: Model, target: str, path: Path, options: Sequence[str] = ()) -> tuple[float, int]:
    """Write a library; return the CPU seconds from the model file, and its bytes without constants."""
    start = sum(os.times()[:4])
    module, params = mlfc.import_model(model.path)
    factory = mlfc.build(module, target, params, module_name="model")
    factory.export_library(path, options=options)
    return sum(os.times()[:4]) - start, path.stat().st_size - factory.code.sizes.constants


def _runner(path: Path, level: str = "") -> Callable[[], object]:
    """Return a call of a library that selects `level` when it is loaded."""
    with mock.patch.dict(os.environ, {LEVEL_VARIABLE: level}):
        loaded = mlfc.load(path)
        inputs = random_inputs(loaded.inputs)
        return loaded.bind(inputs)


def measure(model: Model, folder: Path, seconds: float) -> tuple[str, ...]:
    """Return the table row of one model."""
    levels = LEVELS.get(this_platform().arch)
    reached = levels.levels[: levels.levels.index(level_here(levels)[0]) + 1]
    auto = folder / f"{model.name}-auto.so"
    auto_s, auto_bytes = _exported(model, "c -mcpu=auto", auto)
    own = {level.name: folder / f"{model.name}-{level.name}.so" for level in reached}
    ratios, own_bytes = [], 0
    for level in reached:
        is_native = level is reached[-1]
        target = "c -mcpu=native" if is_native else f"c -mcpu={level.name}"
        # a library is loaded once and selects its level once
        copied = shutil.copyfile(auto, folder / f"{model.name}-auto-{level.name}.so")
        # the flags of the level, because its name alone does not include VNNI
        _, own_bytes = _exported(model, target, own[level.name], NATIVE if is_native else level.flags)
        ratios.append(paired([_runner(copied, level.name), _runner(own[level.name])], seconds)[1])
    # a library without levels
    one_s, one_bytes = _exported(model, "c", folder / f"{model.name}-one.so", NATIVE)
    return (
        model.name,
        *(f"{ratio:.3f}" for ratio in ratios),
        f"{auto_bytes:,}",
        f"{auto_bytes / one_bytes:.2f}",
        f"{auto_bytes / own_bytes:.2f}",
        f"{auto_s:.1f}",
        f"{one_s:.1f}",
    )


def table(models: Sequence[Model], folder: Path, seconds: float) -> Table:
    """Return the table of this machine."""
    levels = LEVELS.get(this_platform().arch)
    names = [level.name for level in levels.levels[: levels.levels.index(level_here(levels)[0]) + 1]]
    result = Table(title="c -mcpu=auto beside libraries for one processor: latency at each level / that library's")
    columns = (*names[:-1], f"{names[-1]}, native", "bytes but constants", "/ c's", "/ native's", "CPU s", "c's")
    for name in ("model", *columns):
        result.add_column(name, justify="left" if name == "model" else "right")
    for model in models:
        result.add_row(*measure(model, folder, seconds))
    return result


def measure_llvm(model: Model, folder: Path, seconds: float) -> tuple[str, ...]:
    """Return the table row of one model by LLVM and by C."""
    paths = {kind: folder / f"{model.name}-{kind}.so" for kind in ("llvm", "c")}
    made = {kind: _exported(model, f"{kind} -mcpu=auto", path) for kind, path in paths.items()}
    ratios = []
    for level in _by_llvm():
        # a library is loaded once and selects its level once
        copies = [shutil.copyfile(path, folder / f"{level}-{path.name}") for path in paths.values()]
        ratios.append(paired([_runner(path, level) for path in copies], seconds)[1])
    return (
        model.name,
        *(f"{ratio:.2f}" for ratio in ratios),
        *(f"{made[kind][1]:,}" for kind in paths),
        *(f"{made[kind][0]:.1f}" for kind in paths),
    )


def _by_llvm() -> list[str]:
    """Return the levels of this machine that LLVM supports."""
    levels = LEVELS.get(this_platform().arch)
    reached = levels.levels[: levels.levels.index(level_here(levels)[0]) + 1]
    return [level.name for level in reached if level.llvm]


def llvm_table(models: Sequence[Model], folder: Path, seconds: float) -> Table:
    """Return the table of LLVM's libraries on this machine."""
    result = Table(title="llvm -mcpu=auto beside c -mcpu=auto: latency at each level / that of C")
    for name in ("model", *_by_llvm(), "bytes but constants", "C's", "CPU s", "C's"):
        result.add_column(name, justify="left" if name == "model" else "right")
    for model in models:
        result.add_row(*measure_llvm(model, folder, seconds))
    return result
