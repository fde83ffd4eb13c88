"""Measuring candidates of kernels: on processors by time, on boards by what their emulator counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mlfc.cluster import BUILD, MEASURE, Workers
from mlfc.errors import MlfcError, OptionError
from mlfc.target.tuned import Choices
from mlfc.tuning.jobs import Code, build, emulate, plain_code, time_libraries
from mlfc.tuning.kernels import TunableKernel, interface_of
from mlfc.tuning.search import Trial

if TYPE_CHECKING:
    from mlfc.factory import Factory
    from mlfc.micro.board.board import Board

SECONDS = 0.5
"""How long the candidates of a kernel are measured, at least some rounds."""

Batch: TypeAlias = "tuple[TunableKernel, Sequence[Choices]]"


@dataclass(frozen=True)
class BatchResult:
    """What came of a kernel's candidates, in their order, and the cost of the rule's values."""

    index: int
    trials: tuple[Trial, ...]
    cost: float | None


class Bench(Protocol):
    """What measures candidates."""

    name: str  # in logs: ``time``, or a board
    margin: float  # how much faster a candidate must be to win
    at_once: int  # kernels whose candidates are measured together

    def measure(self, batches: Sequence[Batch]) -> Iterator[BatchResult]:
        """Measure candidates beside the rule's values; yield each batch once, as it is done."""


@dataclass(frozen=True)
class _Printed:
    """A candidate's code, or why there is none."""

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
        found.append(_Printed(values, code, _interface(factory)))
    return found


def _interface(factory: Factory) -> dict[str, Any]:
    from mlfc.archive.details import full_module_info

    if factory.target.features.is_microcontroller:
        return full_module_info(factory).to_json()
    return interface_of(factory)


class HostBench:
    """Builds libraries and times them; no build of its own runs meanwhile. `level`: of code for less than is here."""

    name, margin = "time", 0.03

    def __init__(self, workers: Workers, seed: int, level: str | None = None, seconds: float = SECONDS) -> None:
        self._workers, self._seed, self._level, self._seconds = workers, seed, level, seconds
        self.at_once = max(4, 2 * workers.count(MEASURE))

    def measure(self, batches: Sequence[Batch]) -> Iterator[BatchResult]:
        """Measure candidates beside the rule's values."""
        printed = [_printed(*batch) for batch in batches]
        places = [(b, c) for b, each in enumerate(printed) for c, item in enumerate(each) if item.code is not None]
        built: dict[tuple[int, int], bytes] = {}
        errors: dict[tuple[int, int], str] = {}
        for outcome in self._workers.run(BUILD, build, [(printed[b][c].code, self._level) for b, c in places]):
            place = places[outcome.index]
            if outcome.error is None:
                built[place] = outcome.value
            else:
                errors[place] = str(outcome.error)
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
            trials = []
            for index, item in enumerate(printed[number][1:], 1):
                if index not in measured:
                    reason = item.error or errors.get((number, index), "")
                    trials.append(Trial(item.values, "failed", reason=reason))
                    continue
                found = measured[index]
                outcome_name = "right" if found.digest == measured[0].digest else "wrong"
                trials.append(Trial(item.values, outcome_name, found.ratio, found.upper))
            yield BatchResult(number, tuple(trials), measured[0].cost)

    def compare(self, codes: Sequence[Code], interfaces: Sequence[dict[str, Any]]) -> float | None:
        """Return the ratio of the time of a second whole model to that of a first one; None if they cannot be built."""
        built = {
            item.index: item.value for item in self._workers.run(BUILD, build, [(code, self._level) for code in codes])
        }
        if any(built[index] is None for index in range(len(codes))):
            return None
        libraries = [built[index] for index in range(len(codes))]
        jobs = [(libraries, list(interfaces), self._seed, 4 * self._seconds)]
        outcome = next(iter(self._workers.run(MEASURE, time_libraries, jobs)))
        return None if outcome.error is not None else float(outcome.value[1].ratio)


class BoardBench:
    """Builds firmware of single kernels, and counts what the board's emulator runs."""

    margin = 0.01

    def __init__(self, workers: Workers, board: Board, name: str, seed: int) -> None:
        self._workers, self._board, self._seed, self.name = workers, board, seed, name
        self.at_once = max(4, 2 * workers.count(BUILD))
        self._usual: dict[str, tuple[str, int]] = {}  # by kernel: what the rule's values give and take

    def measure(self, batches: Sequence[Batch]) -> Iterator[BatchResult]:
        """Measure candidates beside the rule's values."""
        printed = [_printed(*batch) for batch in batches]
        keys = [kernel.facts.key for kernel, _ in batches]
        places = [
            (b, c)
            for b, each in enumerate(printed)
            for c, item in enumerate(each)
            if item.code is not None and (c or keys[b] not in self._usual)
        ]
        jobs = [(printed[b][c].code, printed[b][c].interface, self._board, self._seed) for b, c in places]
        found: dict[tuple[int, int], tuple[str, int]] = {}
        errors: dict[tuple[int, int], MlfcError] = {}
        for outcome in self._workers.run(BUILD, emulate, jobs):
            if outcome.error is not None:
                errors[places[outcome.index]] = outcome.error
            else:
                found[places[outcome.index]] = outcome.value
        for number, each in enumerate(printed):
            if (number, 0) in errors:
                raise errors[number, 0]
            usual = self._usual.setdefault(keys[number], found.get((number, 0), ("", 0)))
            trials = []
            for index, item in enumerate(each[1:], 1):
                if (number, index) not in found:
                    trials.append(
                        Trial(item.values, "failed", reason=item.error or str(errors.get((number, index), "")))
                    )
                    continue
                digest, count = found[number, index]
                ratio = count / max(usual[1], 1)
                trials.append(Trial(item.values, "right" if digest == usual[0] else "wrong", ratio, ratio))
            yield BatchResult(number, tuple(trials), float(usual[1]))
