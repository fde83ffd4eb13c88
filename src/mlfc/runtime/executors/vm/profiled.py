"""A model as bytecode whose kernels are timed, each call of one by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from mlfc.errors import OptionError
from mlfc.runtime.executors.profile import Profile, operator_times
from mlfc.runtime.executors.timeline import MOST_EVENTS, Recorder
from mlfc.runtime.executors.vm.interpreter import Find
from mlfc.runtime.executors.vm.native_tables import HasSymbols, Launch, NativeTables
from mlfc.runtime.executors.vm.vm_model import PYTHON, VmModel
from mlfc.support.bytecode.executable import Executable
from mlfc.support.call_shapes import counted, tensor_in_call
from mlfc.support.module_info import OperatorInfo


@dataclass(frozen=True)
class _Call:
    """One call of a kernel at one of the places of the bytecode that call one."""

    place: int
    start: int
    nanoseconds: int
    buffers: bytes
    numbers: bytes


@dataclass(eq=False)
class _TimedKernels(Sequence[Launch]):
    """Kernels, with a clock around each place of the bytecode that takes one, in their order."""

    kernels: Sequence[Launch]
    places: list[int]  # the kernel of each place
    calls: list[_Call]  # of the run, by their ends
    nanoseconds: list[int]  # that the calls of each place took together, those beyond `MOST_EVENTS` included

    def __len__(self) -> int:
        return len(self.kernels)

    def __iter__(self) -> Iterator[Launch]:
        return iter(self.kernels)

    @overload
    def __getitem__(self, number: int) -> Launch: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Launch]: ...
    def __getitem__(self, number: int | slice) -> Launch | Sequence[Launch]:
        if isinstance(number, slice):
            return self.kernels[number]
        place, launch, spent, calls = len(self.places), self.kernels[number], self.nanoseconds, self.calls
        self.places.append(number)
        spent.append(0)

        def timed(buffers: bytes, numbers: bytes) -> int:
            start = time.perf_counter_ns()
            status = launch(buffers, numbers)
            passed = time.perf_counter_ns() - start
            spent[place] += passed
            if len(calls) < MOST_EVENTS:
                calls.append(_Call(place, start, passed, buffers, numbers))
            return status

        return timed

    def begin_run(self) -> None:
        """Forget the calls of the run before."""
        self.calls.clear()
        self.nanoseconds[:] = [0] * len(self.nanoseconds)


class ProfiledVm(VmModel):
    """A `VmModel` that times every call of a kernel; the interpreter in Python runs it.

    Parameters
    ----------
    executable, data, code, find
        As for `VmModel`.
    operators : sequence of OperatorInfo, optional
        What is known of each place that calls a kernel, in the order of the bytecode; without, the kernels' names.
    """

    def __init__(
        self,
        executable: Executable,
        data: bytes,
        code: HasSymbols,
        find: Find,
        operators: Sequence[OperatorInfo] = (),
    ) -> None:
        super().__init__(executable, data, code, find, interpreter=PYTHON)
        known = len(operators) == len(self._timed.places)
        self._operators = (
            operators
            if known
            else [OperatorInfo(executable.kernels[number].name, (), 0) for number in self._timed.places]
        )

    def _native(self, executable: Executable, code: HasSymbols) -> NativeTables:
        tables = super()._native(executable, code)
        self._timed = _TimedKernels(tables.kernels, [], [], [])
        tables.kernels = self._timed
        return tables

    def profile(self, inputs: Mapping[str, Any] | Sequence[Any], repeat: int = 10) -> Profile:
        """Time every operator over `repeat` runs, after one that warms caches up and is not counted.

        Calls of one operator in the turns of a loop count together, as do their bytes and multiply-accumulates; an
        operator that did not run has the time 0. Each call counts with about a microsecond for reaching it from
        Python. Raises as `ProfiledModule.profile`.
        """
        if repeat < 1:
            raise OptionError(f"{repeat} runs are too few", next_step="Use 1 or more")
        call = self.bind(inputs)
        recorder = Recorder()
        rows, seconds = [], []
        for run in range(-1, repeat):
            self._timed.begin_run()
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
            rows.append(list(self._timed.nanoseconds))
            for item in self._timed.calls if run >= 0 else ():
                recorder.add(run, item.place, 0, item.start, item.nanoseconds)
        times = operator_times(self._operators_of_run(), np.asarray(rows[1:]))
        return Profile(times, tuple(seconds[1:]), call.outputs, recorder.timeline())

    def _operators_of_run(self) -> list[OperatorInfo]:
        """Return the operators with the work of the last run: of all calls together, and the types of the last."""
        count = len(self._operators)
        macs, nbytes, tensors = [0] * count, [0] * count, [item.tensors for item in self._operators]
        for call in self._timed.calls:
            known = self._operators[call.place]
            numbers = np.frombuffer(call.numbers, np.int64).tolist()
            addresses, sizes = np.frombuffer(call.buffers, np.int64).reshape(-1, 2).T
            # a memory that two arguments share counts once
            nbytes[call.place] += sum(dict(zip(addresses.tolist(), sizes.tolist(), strict=True)).values())
            work = known.macs if known.run_macs is None else counted(known.run_macs, numbers)
            macs[call.place] += max(0, work or 0)
            tensors[call.place] = tuple(tensor_in_call(text, numbers) for text in known.tensors)
        return [
            OperatorInfo(item.function, item.nodes, macs[place], nbytes[place], tensors[place])
            for place, item in enumerate(self._operators)
        ]
