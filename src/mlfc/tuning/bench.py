"""Measurement of kernel candidates: by time on processors, by emulator counts on boards."""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from mlfc.archive.details import full_module_info
from mlfc.cluster import BUILD, MEASURE, Workers
from mlfc.errors import MlfcError, OptionError
from mlfc.factory import Factory
from mlfc.library.build import build_library
from mlfc.library.export import level_flags
from mlfc.library.toolchain import NATIVE, find_compiler
from mlfc.micro.board.board import Board
from mlfc.micro.run.emulator import EmulatedModule
from mlfc.runtime.executors.aot_module import AotModule
from mlfc.runtime.modules.runnable import require_success
from mlfc.runtime.tensor.arrays import fill
from mlfc.support.content import to_bytes
from mlfc.support.module_info import ModuleInfo, ModuleInterface
from mlfc.support.plain_file import private_folder
from mlfc.support.platforms import host_arch
from mlfc.target.features import LEVELS, Choices
from mlfc.tuning.kernels import TunableKernel
from mlfc.tuning.search import Trial

# duration of a sample, which repeats its kernel, as clocks have a resolution and calls an overhead
_SAMPLE_SECONDS = 100e-6
_MOST_REPEATS = 1000
_LEAST_ROUNDS, _MOST_ROUNDS = 7, 41
# candidates slower than the best by this factor after some rounds are dropped
_HOPELESS, _EVERY = 1.15, 5

Code = dict[str, bytes]
SECONDS = 0.5
"""Duration of the measurement of a kernel's candidates, in seconds; a minimum number of rounds is always run."""


@dataclass(frozen=True)
class Measured:
    """A candidate's result relative to the first one: quantiles of ratios, and a digest of its outputs."""

    ratio: float
    # 75 % quantile of the ratio: less than 1 only if the candidate is faster in most rounds
    upper: float
    digest: str  # of the outputs
    cost: float  # seconds, or instructions or cycles


def plain_code(files: Mapping[str, Any]) -> Code:
    """Return the files of a module as bytes."""
    return {path: to_bytes(data) for path, data in files.items()}


def build(code: Code, level: str | None = None) -> bytes:
    """Return a library for this processor, or for a lower level; it is used once, and not kept in the cache."""
    known = {each.name: each for each in LEVELS.get(host_arch()).levels} if level is not None else {}
    flags = (NATIVE,) if level is None else level_flags(find_compiler(), known[level])
    while True:
        path = build_library(code, flags)
        with suppress(FileNotFoundError):  # another process built the same library and has already removed it
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
    """Time equivalent modules, interleaved, and return their ratios to the first one.

    The order rotates in each round, so that disturbances affect all modules alike, and caches contain the data of other
    modules, as in a model, rather than those of the same kernel.
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
        samples = _sampled([partial(_repeat, call) for call in calls], seconds, clock)
    first = np.array(samples[0])
    found = []
    for digest, times in zip(digests, samples, strict=True):
        ratios = np.array(times) / first[: len(times)]
        cost = statistics.median(times)
        found.append(Measured(float(np.median(ratios)), float(np.quantile(ratios, 0.75)), digest, cost))
    return found


def _repeat(call: Callable[[], int], repeats: int) -> None:
    for _ in range(repeats):
        call()


def _sampled(runs: Sequence[Callable[[int], None]], seconds: float, clock: Callable[[], float]) -> list[list[float]]:
    """Return the seconds per call in each round; clearly slower runs are dropped after some rounds."""
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
    """Return a digest of all outputs, which detects any difference in bits."""
    found = hashlib.sha256()
    for name in sorted(outputs):
        found.update(name.encode())
        found.update(np.ascontiguousarray(outputs[name]).tobytes())
    return found.hexdigest()


def emulate(code: Code, interface: Mapping[str, Any], board: Any, seed: int) -> tuple[str, int]:
    """Build firmware for a board and run it once; return a digest of the outputs, and cycles or instructions.

    Raises OptionError if the board counts neither.
    """
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


Batch: TypeAlias = "tuple[TunableKernel, Sequence[Choices]]"
_Place: TypeAlias = tuple[int, int]  # the index of a kernel, and of a candidate


@dataclass(frozen=True)
class BatchResult:
    """Results of a kernel's candidates, in order, and the cost of the rule's values."""

    index: int
    trials: tuple[Trial, ...]
    cost: float | None


class Bench(Protocol):
    """A measurement method for candidates."""

    name: str  # in logs: ``time``, or a board
    margin: float  # required relative improvement of a winner
    at_once: int  # kernels whose candidates are measured together

    def measure(self, batches: Sequence[Batch]) -> Iterator[BatchResult]:
        """Measure candidates together with the rule's values; yield each batch when it is done."""


@dataclass(frozen=True)
class _Printed:
    """A candidate's code, or the reason why it has none."""

    values: Choices
    code: Code | None
    interface: dict[str, Any] | None
    error: str = ""


def _printed(kernel: TunableKernel, candidates: Sequence[Choices]) -> list[_Printed]:
    """Return the code of the rule's values and of candidates."""
    found: list[_Printed] = []
    seen: list[Code] = []
    for values in ({}, *candidates):
        try:
            factory: Factory = kernel.factory(values)
        except MlfcError as error:
            found.append(_Printed(values, None, None, str(error)))
            continue
        code = plain_code(factory.code.built_files)
        if code in seen:
            found.append(_Printed(values, None, None, "the same code as that of other values"))
            continue
        seen.append(code)
        is_firmware = factory.target.features.is_microcontroller
        found.append(
            _Printed(
                values, code, full_module_info(factory).to_json() if is_firmware else factory.interface().to_json()
            )
        )
    return found


class _JobBench:
    """A bench that runs jobs on workers. Jobs are keyed by kernel and candidate; the rule's values are candidate 0."""

    def __init__(self, workers: Workers, seed: int, tag: str) -> None:
        self._workers, self._seed = workers, seed
        self.at_once = max(4, 2 * workers.count(tag))

    def _built(
        self, function: Callable[..., Any], jobs: Mapping[_Place, tuple[Any, ...]]
    ) -> tuple[dict[_Place, Any], dict[_Place, MlfcError]]:
        """Return the results and the errors of build jobs."""
        places = list(jobs)
        found: dict[_Place, Any] = {}
        errors: dict[_Place, MlfcError] = {}
        for outcome in self._workers.run(BUILD, function, list(jobs.values())):
            if outcome.error is None:
                found[places[outcome.index]] = outcome.value
            else:
                errors[places[outcome.index]] = outcome.error
        return found, errors


def _trials(
    printed: Sequence[_Printed],
    measured: Mapping[int, Measured],
    usual: str,
    errors: Mapping[_Place, MlfcError],
    kernel: int,
) -> tuple[Trial, ...]:
    """Return the results of a kernel's candidates; `usual` is the digest of the outputs with the rule's values."""
    trials = []
    for index, item in enumerate(printed[1:], 1):
        found = measured.get(index)
        if found is None:
            reason = item.error or str(errors.get((kernel, index), ""))
            trials.append(Trial(item.values, "failed", reason=reason))
        else:
            outcome = "right" if found.digest == usual else "wrong"
            trials.append(Trial(item.values, outcome, found.ratio, found.upper))
    return tuple(trials)


class HostBench(_JobBench):
    """A bench that builds libraries and then times them. `level` is a CPU level below that of this machine."""

    name, margin = "time", 0.03

    def __init__(self, workers: Workers, seed: int, level: str | None = None, seconds: float = SECONDS) -> None:
        super().__init__(workers, seed, MEASURE)
        self._level, self._seconds = level, seconds

    def measure(self, batches: Sequence[Batch]) -> Iterator[BatchResult]:
        """Measure candidates together with the rule's values."""
        printed = [_printed(*batch) for batch in batches]
        codes = {(b, c): item.code for b, each in enumerate(printed) for c, item in enumerate(each)}
        built, errors = self._built(build, {place: (code, self._level) for place, code in codes.items() if code})
        jobs, kept = [], []
        for number, each in enumerate(printed):
            good = [index for index in range(len(each)) if (number, index) in built]
            if 0 not in good:
                raise OptionError(
                    f"the default kernel cannot be built: {each[0].error or errors.get((number, 0), '')}",
                    place=batches[number][0].title,
                )
            kept.append(good)
            libraries = [built[number, index] for index in good]
            jobs.append((libraries, [each[index].interface for index in good], self._seed, self._seconds))
        for outcome in self._workers.run(MEASURE, time_libraries, jobs):
            if outcome.error is not None:
                raise outcome.error
            number, measured = outcome.index, dict(zip(kept[outcome.index], outcome.value, strict=True))
            trials = _trials(printed[number], measured, measured[0].digest, errors, number)
            yield BatchResult(number, trials, measured[0].cost)

    def compare(self, codes: Sequence[Code], interfaces: Sequence[dict[str, Any]]) -> float | None:
        """Return the time of the second whole model relative to the first; None if they cannot be built."""
        built, errors = self._built(build, {(0, index): (code, self._level) for index, code in enumerate(codes)})
        if errors:
            return None
        libraries = [built[0, index] for index in range(len(codes))]
        jobs = [(libraries, list(interfaces), self._seed, 4 * self._seconds)]
        outcome = next(iter(self._workers.run(MEASURE, time_libraries, jobs)))
        return None if outcome.error is not None else float(outcome.value[1].ratio)


class BoardBench(_JobBench):
    """A bench that builds firmware of single kernels, and reads the counts of the board's emulator."""

    margin = 0.01

    def __init__(self, workers: Workers, board: Board, name: str, seed: int) -> None:
        super().__init__(workers, seed, BUILD)
        self._board, self.name = board, name
        self._usual: dict[str, tuple[str, int]] = {}  # by kernel: digest and count with the rule's values

    def measure(self, batches: Sequence[Batch]) -> Iterator[BatchResult]:
        """Measure candidates together with the rule's values."""
        printed = [_printed(*batch) for batch in batches]
        keys = [kernel.facts.key for kernel, _ in batches]
        jobs = {
            (b, c): (item.code, item.interface, self._board, self._seed)
            for b, each in enumerate(printed)
            for c, item in enumerate(each)
            if item.code is not None and (c or keys[b] not in self._usual)
        }
        found, errors = self._built(emulate, jobs)
        for number, each in enumerate(printed):
            if (number, 0) in errors:
                raise errors[number, 0]
            digest, usual = self._usual.setdefault(keys[number], found.get((number, 0), ("", 0)))
            measured = {}
            for (kernel, index), (other, count) in found.items():
                if kernel == number:
                    ratio = count / max(usual, 1)
                    measured[index] = Measured(ratio, ratio, other, count)
            yield BatchResult(number, _trials(each, measured, digest, errors, number), float(usual))
