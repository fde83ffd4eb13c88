"""The jobs of tuning: what builds and measures candidates, wherever it runs. Arguments and results are plain data."""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import OptionError
from mlfc.library.build import build_library
from mlfc.library.export import level_flags
from mlfc.library.toolchain import NATIVE, find_compiler
from mlfc.runtime.executors.aot_module import AotModule
from mlfc.runtime.modules.runnable import require_success
from mlfc.runtime.tensor.arrays import fill
from mlfc.support.content import to_bytes
from mlfc.support.module_info import ModuleInterface
from mlfc.support.plain_file import private_folder
from mlfc.support.platforms import host_arch
from mlfc.target.features import LEVELS

# a sample repeats its kernel for so long, as clocks have a resolution and calls a cost
_SAMPLE_SECONDS = 100e-6
_MOST_REPEATS = 1000
_LEAST_ROUNDS, _MOST_ROUNDS = 7, 41
# candidates that are so much slower than the best one after some rounds are dropped
_HOPELESS, _EVERY = 1.15, 5

Code = dict[str, bytes]


@dataclass(frozen=True)
class Measured:
    """A candidate beside the first one: medians of ratios, and what the results were."""

    ratio: float
    # the ratio of all but the worst quarter of the rounds: less than 1 only where the candidate is faster mostly
    upper: float
    digest: str  # of the outputs
    cost: float  # seconds, or instructions or cycles


def plain_code(files: Mapping[str, Any]) -> Code:
    """Return the files of a module as bytes."""
    return {path: to_bytes(data) for path, data in files.items()}


def build(code: Code, level: str | None = None) -> bytes:
    """Return a library for this processor, or a lower level that it has; it is tried once and not kept in the cache."""
    known = {each.name: each for each in LEVELS.get(host_arch()).levels} if level is not None else {}
    flags = (NATIVE,) if level is None else level_flags(find_compiler(), known[level])
    while True:
        path = build_library(code, flags)
        with suppress(FileNotFoundError):  # another process built the same, and is done with it
            data = path.read_bytes()
            path.unlink(missing_ok=True)
            return data


def time_libraries(
    libraries: Sequence[bytes],
    interfaces: Sequence[Mapping[str, Any]],
    seed: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Measured]:
    """Time modules that do the same, by turns, and return the ratios to the first one.

    The turns begin with another one in each round, so what else the machine does meets all of them alike; caches hold
    what they hold between other operators of a model, rather than the one kernel that ran before.
    """
    with tempfile.TemporaryDirectory(dir=private_folder()) as folder:
        modules = []
        for index, (data, interface) in enumerate(zip(libraries, interfaces, strict=True)):
            path = Path(folder, f"candidate{index}.so")
            path.write_bytes(data)
            modules.append(AotModule(path, ModuleInterface.from_json(interface)))
        given = fill(modules[0].inputs, "random", seed)
        calls = [module.bind(given) for module in modules]
        for call in calls:
            require_success(call())
        digests = [digest_of(call.outputs) for call in calls]
        samples = _sampled([_checked(call) for call in calls], seconds, clock)
    first = np.array(samples[0])
    found = []
    for digest, times in zip(digests, samples, strict=True):
        ratios = np.array(times) / first[: len(times)]
        cost = statistics.median(times)
        found.append(Measured(float(np.median(ratios)), float(np.quantile(ratios, 0.75)), digest, cost))
    return found


def _checked(call: Callable[[], int]) -> Callable[[int], None]:
    def run(repeats: int) -> None:
        for _ in range(repeats):
            call()

    return run


def _sampled(runs: Sequence[Callable[[int], None]], seconds: float, clock: Callable[[], float]) -> list[list[float]]:
    """Return the seconds of one call in each round; runs that are hopeless have fewer rounds."""
    start = clock()
    runs[0](1)
    repeats = min(_MOST_REPEATS, max(1, int(_SAMPLE_SECONDS / max(clock() - start, 1e-9))))
    samples: list[list[float]] = [[] for _ in runs]
    alive = list(range(len(runs)))
    begin = clock()
    for number in range(_MOST_ROUNDS):
        for place in range(len(alive)):
            index = alive[(place + number) % len(alive)]
            start = clock()
            runs[index](repeats)
            samples[index].append(max(clock() - start, 1e-9) / repeats)
        if number + 1 >= _LEAST_ROUNDS and clock() - begin > seconds:
            break
        if (number + 1) % _EVERY == 0:
            medians = {index: statistics.median(samples[index]) for index in alive}
            best = min(medians.values())
            alive = [index for index in alive if index == 0 or medians[index] <= best * _HOPELESS]
    return samples


def digest_of(outputs: Mapping[str, Any]) -> str:
    """Return a digest of all outputs, to the bit."""
    found = hashlib.sha256()
    for name in sorted(outputs):
        found.update(name.encode())
        found.update(np.ascontiguousarray(outputs[name]).tobytes())
    return found.hexdigest()


def emulate(code: Code, interface: Mapping[str, Any], board: Any, seed: int) -> tuple[str, int]:
    """Build firmware for a board and run it once; return a digest of the outputs, and cycles or instructions.

    Raises OptionError if the board counts neither.
    """
    from mlfc.micro.run.emulator import EmulatedModule
    from mlfc.support.module_info import ModuleInfo

    firmware = EmulatedModule("tuned", code, ModuleInfo.from_json(interface), board)
    run = firmware.measure(fill(firmware.inputs, "random", seed))
    count = run.cycles if run.cycles is not None else run.instructions
    if count is None:
        raise OptionError(
            f"the board '{board.name}' counts neither instructions nor cycles",
            place="--board",
            next_step="Choose a board whose emulator counts: mlfc boards",
        )
    return digest_of(run.outputs), count
