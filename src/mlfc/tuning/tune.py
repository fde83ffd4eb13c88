"""Tuning of a model: search for the fastest kernel parameters by measurement, recorded in a log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mlfc.cluster import BUILD, MEASURE, opened_workers
from mlfc.compiler import build_module
from mlfc.errors import OptionError
from mlfc.frontend import Model, model_name, read_model
from mlfc.options import BuildOptions
from mlfc.support.keywords import with_keywords
from mlfc.support.progress import bar, reported
from mlfc.support.text import Displayed, shortened
from mlfc.target.features import TEMPLATES, Choices
from mlfc.target.target import Target, parse_target
from mlfc.target.tuning_log import FORM, LogEntry, TuningLog, processor_of, values_key
from mlfc.tuning.bench import Bench, BoardBench, HostBench, plain_code
from mlfc.tuning.kernels import TunableKernel, level_to_build, measured_target, serving, tunable_kernels
from mlfc.tuning.log import LogFile, require_log_name
from mlfc.tuning.options import TuneOptions
from mlfc.tuning.search import LAST, KernelSearch, Trial

_LONGEST_REASON = 400


@dataclass(frozen=True)
class Progress:
    """Progress of a search."""

    kernels: int  # number of kernels in the model
    done: int  # kernels that are finished
    trials: int  # candidates measured, in this and earlier runs
    ratio: float  # estimated time of the tunable kernels with the best parameters so far, divided by that of the rules


@dataclass(frozen=True)
class KernelResult:
    """The result for one kernel."""

    kernel: str
    calls: int
    macs: int  # per call
    values: Choices  # empty if the template's rule is best
    ratio: float  # of time or counts, relative to the rule
    cost: float | None  # of the rule: seconds, or instructions or cycles
    key: str  # identifies the kernel in the log


@dataclass(frozen=True, repr=False)
class TuningResult(Displayed):
    """The result of `tune`."""

    log: Path
    target: str
    measured: str  # ``time``, or the board whose instructions or cycles were counted
    kernels: tuple[KernelResult, ...]
    trials: int  # measured in this run
    known: int  # found in the log
    is_complete: bool  # False if the budget ended the search
    ratio: float  # estimated from the kernels
    model_ratio: float | None  # measured for the whole model; None if nothing changed, and for boards

    def _facts(self) -> Mapping[str, object]:
        better = sum(bool(item.values) for item in self.kernels)
        return {"target": self.target, "kernels": len(self.kernels), "faster": better, "ratio": round(self.ratio, 3)}


@with_keywords(TuneOptions)
def tune(model: Model, options: TuneOptions) -> TuningResult:
    """Measure kernels of a model with different parameter values, and write a log that `build` reads.

    Parameters
    ----------
    model : str, Path, bytes or onnx.ModelProto
        As for `compile`.

    Returns
    -------
    TuningResult

    Raises
    ------
    MlfcError
        For models and options that cannot be tuned, invalid logs, and schedulers that do not answer.

    Examples
    --------
    >>> mlfc.tune("kws.tflite", output="tune.jsonl", budget=300)   # doctest: +SKIP
    >>> mlfc.compile("kws.tflite", tuned="tune.jsonl")             # doctest: +SKIP
    """
    return tune_model(model, options)


def tune_model(model: Model, options: TuneOptions) -> TuningResult:
    """Measure kernels of a model as `tune` does."""
    require_log_name(options.output)
    asked = parse_target(options.target if options.board is None else options.board.target, options.optimize)
    chosen = measured_target(asked)
    if options.board is None and options.bench is None and chosen.features.is_microcontroller:
        raise OptionError(
            f"the target '{chosen}' cannot run here", place="--target", next_step="Name a board: --board mps2-an386"
        )
    for name, shape in (options.shapes or {}).items():
        if any(not isinstance(extent, int) for extent in shape):
            raise OptionError(f"tuning requires static shapes, got a dynamic one for '{name}'", place="--shape")
    module, params = read_model(model, replace(options, target=str(chosen)))
    kernels = tunable_kernels(module, params, chosen, options.limit_factor)
    if asked.levels is not None and (served := serving(chosen, kernels)) != chosen:
        chosen, kernels = served, tunable_kernels(module, params, served, options.limit_factor)
    limit = None if options.budget is None else options.clock() + options.budget
    reporting = reported(options.progress, partial(_bar, f"tuning {model_name(model)}"))
    with reporting as report, _opened_bench(options, chosen) as bench:
        building = BuildOptions(str(chosen), optimize=options.optimize, limit_factor=options.limit_factor)

        def whole(choices: Sequence[LogEntry]) -> float | None:
            if not isinstance(bench, HostBench) or not any(entry.values for entry in choices):
                return None
            logs = (TuningLog(()), TuningLog(tuple(choices)))
            made = [build_module(module, params, replace(building, tuned=log)) for log in logs]
            codes = [plain_code(factory.code.built_files) for factory in made]
            return bench.compare(codes, [factory.interface().to_json() for factory in made])

        found = _Tuning(kernels, bench, chosen, options, report)
        return found.run(lambda: limit is not None and options.clock() >= limit, whole)


@contextmanager
def _opened_bench(options: TuneOptions, target: Target) -> Iterator[Bench]:
    """Yield the user's bench, or one for this machine or a board, with the workers that it requires."""
    if options.bench is not None:
        yield options.bench
        return
    board = options.board
    with opened_workers(options.scheduler, *((BUILD, MEASURE) if board is None else (BUILD,))) as workers:
        if board is None:
            yield HostBench(workers, options.seed, level_to_build(target))
        else:
            yield BoardBench(workers, board, board.name, options.seed)


@contextmanager
def _bar(text: str) -> Iterator[Callable[[Progress], None]]:
    with bar(text) as show:
        yield lambda now: show(
            now.done, now.kernels, f"{now.trials} candidates, best so far {100 * (now.ratio - 1):+.1f} %"
        )


class _Tuning:
    """One search over the kernels of a model."""

    def __init__(
        self,
        kernels: Sequence[TunableKernel],
        bench: Bench,
        target: Target,
        options: TuneOptions,
        progress: Callable[[Progress], None],
    ) -> None:
        self._kernels, self._bench, self._log, self._progress = kernels, bench, LogFile(options.output), progress
        self._target, self._optimize = processor_of(target), options.optimize
        self._trials, self._seed = options.trials, options.seed
        known = self._log.current(self._target, self._optimize, bench.name)
        self._known = {(entry.kernel.key, values_key(entry.values)): entry for entry in known if entry.kind == "trial"}
        self._choices = {entry.kernel.key: entry for entry in known if entry.kind == "choice"}
        self._costs: dict[str, float | None] = {entry.kernel.key: entry.cost for entry in known if entry.cost}
        self._measured = self._reused = 0
        self._best: dict[str, float] = {key: entry.ratio or 1.0 for key, entry in self._choices.items()}

    def run(self, is_over: Callable[[], bool], whole: Callable[[Sequence[LogEntry]], float | None]) -> TuningResult:
        """Search until all kernels have a choice, or the budget is spent."""
        self._reused = sum(kernel.facts.key in self._choices for kernel in self._kernels)
        left = [kernel for kernel in self._kernels if kernel.facts.key not in self._choices]
        self._report()
        for start in range(0, len(left), self._bench.at_once):
            if is_over():
                break
            self._wave(left[start : start + self._bench.at_once], is_over)
        results = []
        for kernel in self._kernels:
            entry, cost = self._choices.get(kernel.facts.key), self._costs.get(kernel.facts.key)
            values, ratio = (entry.values, entry.ratio or 1.0) if entry else ({}, 1.0)
            results.append(KernelResult(kernel.title, kernel.calls, kernel.macs, values, ratio, cost, kernel.facts.key))
        own = [self._choices[kernel.facts.key] for kernel in self._kernels if kernel.facts.key in self._choices]
        return TuningResult(
            Path(self._log.path),
            self._target,
            self._bench.name,
            tuple(results),
            self._measured,
            self._reused,
            len(own) == len(self._kernels),
            self._ratio(),
            whole(own),
        )

    def _wave(self, kernels: Sequence[TunableKernel], is_over: Callable[[], bool]) -> None:
        """Search for several kernels together, round by round."""
        searches = {}
        for kernel in kernels:
            draw = random.Random(f"{self._seed} {kernel.facts.key}")  # noqa: S311 (no secret)
            searches[kernel] = KernelSearch(kernel.parameters, self._trials, self._bench.margin, draw)
        while any(not search.is_over for search in searches.values()) and not is_over():
            alive = [(kernel, search) for kernel, search in searches.items() if not search.is_over]
            known: dict[TunableKernel, list[Trial]] = {}
            batches: list[tuple[TunableKernel, list[Choices]]] = []
            for kernel, search in alive:
                candidates = search.candidates()
                keys = [(kernel.facts.key, values_key(values)) for values in candidates]
                # reuse results from the log
                entries = [self._known[key] for key in keys if key in self._known and search.round != LAST]
                self._reused += len(entries)
                known[kernel] = [
                    Trial(item.values, item.outcome, item.ratio, item.ratio, item.reason) for item in entries
                ]
                done = {values_key(trial.values) for trial in known[kernel]}
                fresh = [values for values in candidates if values_key(values) not in done]
                if fresh:
                    batches.append((kernel, fresh))
            measured: dict[TunableKernel, tuple[Trial, ...]] = {}
            for result in self._bench.measure(batches) if batches else ():
                kernel = batches[result.index][0]
                measured[kernel] = result.trials
                self._costs[kernel.facts.key] = result.cost
                if searches[kernel].round < LAST:
                    for trial in result.trials:
                        self._write("trial", kernel, trial)
                self._measured += len(result.trials)
            for kernel, search in alive:
                search.take([*known[kernel], *measured.get(kernel, ())])
                self._best[kernel.facts.key] = search.best_ratio
                if search.is_over:
                    self._write("choice", kernel, search.choice)
                    self._best[kernel.facts.key] = search.choice.ratio or 1.0
            self._report()

    def _write(self, kind: str, kernel: TunableKernel, trial: Trial) -> None:
        entry = LogEntry(
            FORM, TEMPLATES, kind, self._target, self._optimize, kernel.facts, trial.values, trial.outcome,
            None if trial.ratio is None else round(trial.ratio, 5), self._bench.name, self._costs.get(kernel.facts.key),
            shortened(trial.reason, _LONGEST_REASON) if trial.reason else "",
        )  # fmt: skip
        self._log.add(entry)
        if kind == "choice":
            self._choices[kernel.facts.key] = entry

    def _ratio(self) -> float:
        """Return the estimated cost of all kernels with the best parameters so far, divided by that of the rules."""
        before = after = 0.0
        for kernel in self._kernels:
            cost = (self._costs.get(kernel.facts.key) or 0.0) * kernel.calls
            before, after = before + cost, after + cost * self._best.get(kernel.facts.key, 1.0)
        return after / before if before else 1.0

    def _report(self) -> None:
        done = sum(kernel.facts.key in self._choices for kernel in self._kernels)
        self._progress(Progress(len(self._kernels), done, self._measured + self._reused, self._ratio()))
