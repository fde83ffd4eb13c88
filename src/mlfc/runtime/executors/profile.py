"""Timing of models: of whole calls, and of every operator in libraries with a profiling hook."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import OptionError
from mlfc.runtime.executors.aot_module import AotModule, Library, function_of
from mlfc.runtime.modules.runnable import require_success
from mlfc.runtime.tensor.arrays import Values
from mlfc.runtime.threads import thread_times, time_threads
from mlfc.support.content import Data
from mlfc.support.tensor_info import Array
from mlfc.support.text import Displayed, html_table

if TYPE_CHECKING:
    from mlfc.support.module_info import ModuleInterface, OperatorInfo

TRACE_FLAGS = (
    "-DMLFC_TRACE=1",
    "-DMLFC_TRACE_TICKS=mlfc_trace_nanoseconds",
    "-DMLFC_TRACE_RECORD=mlfc_trace_operator",
)
"""Compiler flags that enable the hook in generated code and direct it to `record_file`."""
_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True)
class OperatorTime(Displayed):
    """Time of one operator of a model, which is one call of a generated function."""

    index: int  # its place in the order of execution
    function: str  # the generated C function
    nodes: tuple[str, ...]  # of the original model
    macs: int  # multiply-accumulates
    nanoseconds: float  # median over the runs, including 20 to 50 ns for reading the clock
    share: float  # of the time of all operators together, 0 to 1
    nbytes: int | None = None  # of all tensors that it reads and writes
    tensors: tuple[str, ...] = ()  # types of the tensors that it reads, then of those that it writes
    threads: tuple[float, ...] = ()  # median working time of each thread, the caller's first

    @property
    def gmacs_per_second(self) -> float | None:
        """Billions of multiply-accumulates per second; None for an operator without any."""
        return self.macs / self.nanoseconds if self.macs and self.nanoseconds else None

    @property
    def gbytes_per_second(self) -> float | None:
        """Billions of bytes per second; None if the bytes are unknown."""
        return self.nbytes / self.nanoseconds if self.nbytes and self.nanoseconds else None

    @property
    def balance(self) -> float | None:
        """Thread balance: the mean of the threads' times divided by the longest; None for one thread."""
        longest = max(self.threads, default=0.0)
        return sum(self.threads) / len(self.threads) / longest if len(self.threads) > 1 and longest else None


@dataclass(frozen=True, repr=False)
class Profile(Displayed):
    """Result of `profile`."""

    operators: tuple[OperatorTime, ...]  # in the order of execution
    runs: tuple[float, ...]  # seconds of each whole run, as the caller sees it
    outputs: Mapping[str, Any]  # of the last run, by name
    timeline: Timeline | None = None  # when each call ran; None of a device that times single operators

    def _facts(self) -> Mapping[str, object]:
        median = f"{float(np.median(self.runs)) * 1e3:.4g} ms" if self.runs else "-"
        return {"operators": len(self.operators), "runs": len(self.runs), "median": median}

    def _repr_html_(self) -> str:
        header = ("", "function", "nodes", "MACs", "median us", "share")
        rows = [
            (item.index, item.function, item.nodes, item.macs, f"{item.nanoseconds / 1e3:.4g}", f"{item.share:.1%}")
            for item in self.operators
        ]
        return html_table("Profile", header, rows)


def operator_times(
    operators: Sequence[OperatorInfo], nanoseconds: Any, threads: Any = None
) -> tuple[OperatorTime, ...]:
    """Return median times from `rows` by run and operator and `threads` by run, operator and thread."""
    medians = np.median(np.asarray(nanoseconds).reshape(-1, len(operators)), axis=0) if len(operators) else []
    total = float(sum(medians)) or 1.0
    worked = np.zeros((len(operators), 0)) if threads is None else np.median(threads, axis=0)
    return tuple(
        OperatorTime(
            index,
            entry.function,
            entry.nodes,
            entry.macs,
            float(median),
            float(median) / total,
            entry.nbytes,
            entry.tensors,
            tuple(map(float, spent)) if any(spent[1:]) else (),
        )
        for index, (entry, median, spent) in enumerate(zip(operators, medians, worked, strict=True))
    )


def thread_rows(repeat: int, operators: int, run: Callable[[Callable[..., object]], object]) -> Array | None:
    """Return nanoseconds of threads in parallel parts of operators in extra runs, by run, operator and thread.

    `run` calls its argument with the index of each operator that ended. None if only one thread works.
    """
    if len(thread_times()) < 2:
        return None
    rows = np.zeros((repeat, operators + 1, len(thread_times())))
    time_threads(True)
    try:
        for row in rows:
            row[:] = thread_times()

            def note(index: int, *_: object, row: Array = row) -> None:
                row[index + 1 :] = thread_times()

            run(note)
    finally:
        time_threads(False)
    return np.diff(rows, axis=1) * 1e9


def record_file() -> bytes:
    """Return the C source of the hook's recorder, for libraries of `ProfiledModule`."""
    return Path(__file__).with_name("operator_record.c").read_bytes()


class ProfiledModule(AotModule):
    """An `AotModule` whose library was built from the same C with the hook enabled.

    Build it with `TRACE_FLAGS`, `record_file` and the C runtime's header ``mlfc_trace.h``, or provide the same
    functions. The description must have ``operators``.
    """

    def __init__(
        self, library: Library, description: ModuleInterface, loaded: Mapping[str, Data] | None = None
    ) -> None:
        super().__init__(library, description, loaded)
        self._operators: Sequence[OperatorInfo] = description.operators or ()
        self._time = function_of(library, "mlfc_trace_time", None)
        self._observe = function_of(library, "mlfc_trace_observe", None)

    def profile(self, inputs: Values, repeat: int = 10) -> Profile:
        """Time every operator over `repeat` runs, after one warm-up run.

        Parameters
        ----------
        inputs : mapping of str to array, or sequence of arrays
            As for `bind`.
        repeat : int
            Number of timed runs.

        Raises
        ------
        InputError, ProblemsError
            If the inputs do not fit the model.
        RunError
            If the generated code reports failure.
        """
        if repeat < 1:
            raise OptionError(f"{repeat} runs are too few", next_step="Use 1 or more")
        call = self.bind(inputs)
        # starts, then what passed
        nanoseconds = np.zeros((repeat, 2, len(self._operators)), np.uint64)
        seconds = []
        with self._lock:
            try:
                for index in range(-1, repeat):
                    row = nanoseconds[max(index, 0)]
                    self._time(ctypes.c_void_p(row.ctypes.data), ctypes.c_int32(row.shape[1]))
                    start = time.perf_counter()
                    status = call()
                    seconds.append(time.perf_counter() - start)
                    require_success(status)
            finally:
                self._time(None, ctypes.c_int32(0))
            worked = thread_rows(repeat, len(self._operators), partial(self._observed, call))
        starts, passed = nanoseconds[:, 0], nanoseconds[:, 1]
        times = operator_times(self._operators, passed, worked)
        timeline = Timeline.of_rows(starts, passed).with_threads([item.threads for item in times])
        return Profile(times, tuple(seconds[1:]), call.outputs, timeline)

    def operator_outputs(self, inputs: Values) -> tuple[bytes, ...]:
        """Run once, and return the bytes of every operator's output when it ended; raise as `run` does."""
        call = self.bind(inputs)
        seen: dict[int, bytes] = {}

        def keep(index: int, data: int | None, nbytes: int) -> None:
            seen[index] = ctypes.string_at(data, nbytes) if data else b""

        with self._lock:
            self._observed(call, keep)
        return tuple(seen[index] for index in range(len(self._operators)))

    def _observed(self, call: Callable[[], int], seen: Callable[..., object]) -> None:
        """Run once; `seen` is called after each operator with its index, and the address and size of its output."""
        observer = _OBSERVER(seen)
        self._observe(observer)
        try:
            status = call()
        finally:
            self._observe(None)
        require_success(status)


MOST_EVENTS = 1_000_000
"""Most events recorded in one profile; later ones are only counted."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """Calls of operators in columns; the calls of each thread are ordered by their ends.

    Times are in nanoseconds from the first start. Runs and operators count from 0, and thread 0 is the caller's.
    """

    run: Array
    operator: Array
    thread: Array
    start: Array
    duration: Array
    left_out: int = 0  # calls beyond `MOST_EVENTS`

    def __len__(self) -> int:
        return len(self.run)

    @classmethod
    def of_rows(cls, starts: Any, durations: Any) -> Timeline:
        """Return the timeline of operators that run once each: one row per run, one column per operator."""
        begun, passed = (np.asarray(rows).astype(np.int64) for rows in (starts, durations))
        run, operator = (places.ravel() for places in np.indices(begun.shape))
        columns = (run, operator, np.zeros(run.size), begun.ravel(), passed.ravel())
        return cls._placed([column[:MOST_EVENTS] for column in columns], run.size)

    def with_threads(self, worked: Sequence[Sequence[float]]) -> Timeline:
        """Add the calls of the other threads.

        `worked` has the nanoseconds of each thread for each operator, or nothing for single-threaded operators. Only
        the durations are known: all threads are shown to start with their operator and to end no later.
        """
        added = [self]
        for thread in range(1, max(map(len, worked), default=0)):
            spent = np.array([times[thread] if len(times) > thread else 0.0 for times in worked])
            shared = spent[self.operator] > 0
            durations = np.minimum(spent[self.operator], self.duration)[shared].astype(np.int64)
            others = np.full(durations.shape, thread, np.int32)
            added.append(Timeline(self.run[shared], self.operator[shared], others, self.start[shared], durations))
        names = ("run", "operator", "thread", "start", "duration")
        run, operator, threads, start, duration = (
            np.concatenate([getattr(each, name) for each in added]) for name in names
        )
        return Timeline(run, operator, threads, start, duration, self.left_out)

    @classmethod
    def _placed(cls, columns: Iterable[Any], total: int) -> Timeline:
        *places, start, duration = columns
        begin = np.asarray(start, np.int64)
        begin = begin - (begin.min() if begin.size else 0)
        run, operator, thread = (np.asarray(column, np.int32) for column in places)
        return cls(run, operator, thread, begin, np.asarray(duration, np.int64), total - begin.size)


@dataclass
class Recorder:
    """Collects calls one by one."""

    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    total: int = 0

    def add(self, run: int, operator: int, thread: int, start: int, duration: int) -> None:
        """Record a call."""
        self.total += 1
        if len(self.rows) < MOST_EVENTS:
            self.rows.append((run, operator, thread, start, duration))

    def timeline(self) -> Timeline:
        """Return all recorded calls."""
        return Timeline._placed(np.asarray(self.rows, np.int64).reshape(-1, 5).T, self.total)


_GROWTH = 1.618  # growth of the number of calls if a repetition was too short


@dataclass(frozen=True, repr=False)
class BenchmarkResult(Displayed):
    """Seconds per call, one value per repetition."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean, in seconds."""
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        """Median, in seconds."""
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        """Minimum, in seconds."""
        return min(self.results)

    @property
    def max(self) -> float:
        """Maximum, in seconds."""
        return max(self.results)

    @property
    def std(self) -> float:
        """Standard deviation, in seconds."""
        return float(np.std(self.results))

    def _facts(self) -> Mapping[str, object]:
        names = ("mean", "median", "max", "min", "std")
        return {**{name: f"{getattr(self, name) * 1e3:.4g} ms" for name in names}, "repeat": len(self.results)}


def evaluate(
    call: Callable[[], object],
    *,
    number: int,
    repeat: int,
    min_repeat_ms: float = 0,
    cooldown_interval_ms: float = 0,
    repeats_to_cooldown: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> BenchmarkResult:
    """Measure the time of a call, after one warm-up call.

    Each of `repeat` repetitions yields the mean of its `number` calls. Calls are added until a repetition takes
    `min_repeat_ms`; after every `repeats_to_cooldown` repetitions it sleeps for `cooldown_interval_ms`. `clock` returns
    seconds.
    """
    if number < 1 or repeat < 1 or repeats_to_cooldown < 1:
        raise OptionError(f"expected at least 1 call and repetition, got number={number}, repeat={repeat}")
    call()
    results = []
    for iteration in range(repeat):
        while True:
            start = clock()
            for _ in range(number):
                call()
            passed = clock() - start
            if passed * 1e3 >= min_repeat_ms:
                break
            needed = min_repeat_ms / max(passed * 1e3 / number, 1e-6)
            number = int(max(needed + 1, number * _GROWTH))
        results.append(passed / number)
        if cooldown_interval_ms > 0 and (iteration + 1) % repeats_to_cooldown == 0:
            time.sleep(cooldown_interval_ms / 1e3)
    return BenchmarkResult(tuple(results))
