"""A dynamic model whose kernels are timed, each call of one by itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlfc.errors import OptionError
from mlfc.runtime.executors.profile import Profile, operator_times
from mlfc.runtime.executors.timeline import MOST_EVENTS, Recorder
from mlfc.runtime.executors.vm.engine import Find
from mlfc.runtime.executors.vm.native import TRACE, HasSymbols, pointer_to
from mlfc.runtime.executors.vm.vm_model import VmModel
from mlfc.support.call_shapes import counted, nbytes_of_type, tensor_in_call
from mlfc.support.executable import Executable
from mlfc.support.module_info import OperatorInfo


@dataclass(frozen=True)
class _TracedCall:
    """One call of a kernel, by the number of its place in the code."""

    place: int
    start: int
    nanoseconds: int
    numbers: tuple[int, ...]


class ProfiledVm(VmModel):
    """A `VmModel` that times every call of a kernel.

    Parameters
    ----------
    executable, code, find
        As for `VmModel`.
    operators : sequence of OperatorInfo
        What is known of each place that calls a kernel, in the order of the code.
    """

    def __init__(
        self, executable: Executable, code: HasSymbols, find: Find, operators: Sequence[OperatorInfo] = ()
    ) -> None:
        super().__init__(executable, code, find)
        self._operators = [*operators]
        self._calls: list[_TracedCall] = []
        self._spent: list[int] = []
        self._started = 0
        self._trace = TRACE(self._traced)
        self._engine.trace = pointer_to(self._trace)

    def _traced(self, _context: Any, place: int, numbers: Any, count: int, data: int | None, _nbytes: int) -> None:
        now = time.perf_counter_ns()
        if data is None:
            self._started = time.perf_counter_ns()
            return
        while place >= len(self._operators):
            self._operators.append(OperatorInfo(f"call {len(self._operators)}", (), 0))
        self._spent.extend([0] * (len(self._operators) - len(self._spent)))
        passed = now - self._started
        self._spent[place] += passed
        if len(self._calls) < MOST_EVENTS:
            self._calls.append(_TracedCall(place, self._started, passed, tuple(numbers[:count])))

    def profile(self, inputs: Mapping[str, Any] | Sequence[Any], repeat: int = 10) -> Profile:
        """Time every operator over `repeat` runs, after one that warms caches up and is not counted.

        Calls of one operator in the iterations of a loop count together, as do their bytes and multiply-accumulates; an
        operator that did not run has the time 0. Raises as `ProfiledModule.profile`.
        """
        if repeat < 1:
            raise OptionError(f"{repeat} runs are too few", next_step="Use 1 or more")
        call = self.bind(inputs)
        recorder = Recorder()
        rows, seconds = [], []
        for run in range(-1, repeat):
            self._calls.clear()
            self._spent = [0] * len(self._operators)
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
            rows.append(self._spent)
            for item in self._calls if run >= 0 else ():
                recorder.add(run, item.place, 0, item.start, item.nanoseconds)
        width = len(self._operators)
        table = [row + [0] * (width - len(row)) for row in rows[1:]]
        times = operator_times(self._operators_of_run(), np.asarray(table))
        return Profile(times, tuple(seconds[1:]), call.outputs, recorder.timeline())

    def _operators_of_run(self) -> list[OperatorInfo]:
        """Return the operators with the work of the last run: of all calls together, and the types of the last."""
        count = len(self._operators)
        macs, nbytes, tensors = [0] * count, [0] * count, [item.tensors for item in self._operators]
        for call in self._calls:
            known = self._operators[call.place]
            work = known.macs if known.run_macs is None else counted(known.run_macs, call.numbers)
            macs[call.place] += max(0, work or 0)
            tensors[call.place] = tuple(tensor_in_call(text, call.numbers) for text in known.tensors)
            nbytes[call.place] += sum(map(nbytes_of_type, tensors[call.place]))
        return [
            OperatorInfo(item.function, item.nodes, macs[place], nbytes[place], tensors[place])
            for place, item in enumerate(self._operators)
        ]
