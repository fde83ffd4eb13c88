"""LLVM's objects compared with gcc's: compile time, latency interleaved on one thread, firmware under QEMU."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
from rich.table import Table

import mlfc
from benchmarks.models import Model, random_inputs
from mlfc.factory import Factory
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import emulated_factory
from mlfc.verify.compare import sample_inputs

KINDS = ("llvm", "c")
LEVELS = ("", " -mcpu=native")
FIRMWARE = ("pretrainedResnet_quant", "kws_ref_model", "vww_96_int8", "ad01_int8")
# boards, and LLVM's options for their cores
CORES = {"mps2-an386": "-mcpu=cortex-m4", "mps3-an547": "-mcpu=cortex-m55 -mfloat-abi=hard"}


def _compiled(model: Model, target: str) -> tuple[float, Factory]:
    """Return the CPU seconds from the model file to a first result on this machine, and the module."""
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, XDG_CACHE_HOME=cache):
        start = _cpu_seconds()
        module, params = mlfc.import_model(model.path)
        factory = mlfc.build(module, target, params, module_name="model")
        inputs = random_inputs(factory.runtime.inputs)
        factory.runtime.run(inputs)
        return _cpu_seconds() - start, factory


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children, which do not depend on other load."""
    return sum(os.times()[:4])


def paired(runners: Sequence[Callable[[], object]], seconds: float) -> tuple[list[float], float]:
    """Return the median seconds of two alternating runners, and the median ratio of successive runs."""
    for run in runners:
        run()
    start = time.perf_counter()
    for run in runners:
        run()
    once = max((time.perf_counter() - start) / 2, 1e-7)
    batch = max(1, int(200e-6 / once))
    times: list[list[float]] = [[], []]
    for pair in range(max(9, min(3000, int(seconds / (2 * once * batch))))):
        for which in (0, 1) if pair % 2 else (1, 0):
            start = time.perf_counter()
            for _ in range(batch):
                runners[which]()
            times[which].append((time.perf_counter() - start) / batch)
    ratios = [ours / theirs for ours, theirs in zip(*times, strict=True)]
    return [statistics.median(values) for values in times], statistics.median(ratios)


def measure(model: Model, level: str, seconds: float) -> tuple[str, ...]:
    """Return the table row of one model for one processor."""
    (ours_s, ours), (theirs_s, theirs) = (_compiled(model, f"{kind}{level}") for kind in KINDS)
    inputs = random_inputs(ours.runtime.inputs)
    outputs = [factory.runtime.run(inputs) for factory in (ours, theirs)]
    same = all(outputs[0][name].tobytes() == array.tobytes() for name, array in outputs[1].items())
    latency, ratio = paired([factory.runtime.bind(inputs) for factory in (ours, theirs)], seconds)
    return (
        model.name,
        level.strip() or "(none)",
        f"{ours_s:.1f}",
        f"{theirs_s:.1f}",
        *(f"{value * 1e6:,.1f}" for value in latency),
        f"{ratio:.2f}",
        "yes" if same else "NO",
    )


def table(models: Sequence[Model], seconds: float) -> Table:
    """Return the table of this machine."""
    result = Table(
        title="LLVM beside gcc -O3 -march=native: CPU seconds from file to first result, latency of one thread (us)"
    )
    for name in ("model", "target's options", "LLVM s", "gcc s", "LLVM us", "gcc us", "ratio", "same bits"):
        result.add_column(name, justify="left" if name in ("model", "target's options", "same bits") else "right")
    for model in models:
        for level in LEVELS:
            result.add_row(*measure(model, level, seconds))
    return result


def firmware(models: Sequence[Model]) -> Table:
    """Return the table of firmware under QEMU."""
    result = Table(title="Firmware of LLVM's objects beside gcc -O3, under QEMU")
    for name in ("model", "board", "LLVM instructions", "gcc instructions", "ratio", "LLVM flash", "gcc flash", "same"):
        result.add_column(name, justify="left" if name in ("model", "board", "same") else "right")
    for name, options in CORES.items():
        board = find_board(name)
        for model in models:
            if model.name not in FIRMWARE:
                continue
            module, params = mlfc.import_model(model.path)
            runs = []
            for target in (f"llvm {options}", board.target):
                factory = mlfc.build(module, target, params, module_name="model", workspace_io=True)
                made = emulated_factory(factory, board)
                runs.append(made.measure(next(iter(sample_inputs(made.inputs, 1, seed=1)))[1]))
            ours, theirs = runs
            counts = (ours.instructions or 0, theirs.instructions or 1)
            same = all(np.array_equal(ours.outputs[tensor], array) for tensor, array in theirs.outputs.items())
            result.add_row(
                model.name,
                name,
                *(f"{count:,}" for count in counts),
                f"{counts[0] / counts[1]:.2f}",
                *(f"{run.flash_bytes:,}" for run in runs),
                "yes" if same else "NO",
            )
    return result
