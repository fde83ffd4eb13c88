"""A model as bytecode whose kernels are timed, each call of one by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from mlfc.errors import OptionError
from mlfc.runtime.executors.profile import Profile, operator_times
from mlfc.runtime.executors.vm.interpreter import Find
from mlfc.runtime.executors.vm.native_tables import HasSymbols, Launch, NativeTables
from mlfc.runtime.executors.vm.vm_model import PYTHON, VmModel
from mlfc.support.bytecode.executable import Executable
from mlfc.support.module_info import OperatorInfo


@dataclass(eq=False)
class _TimedKernels(Sequence[Launch]):
    """Kernels, with a clock around each place of the bytecode that takes one, in their order."""

    kernels: Sequence[Launch]
    places: list[int]  # the kernel of each place
    nanoseconds: list[int]  # that the calls of each place took together

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
        place, launch, spent = len(self.places), self.kernels[number], self.nanoseconds
        self.places.append(number)
        spent.append(0)

        def timed(buffers: bytes, numbers: bytes) -> int:
            start = time.perf_counter_ns()
            status = launch(buffers, numbers)
            spent[place] += time.perf_counter_ns() - start
            return status

        return timed


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
        self._timed = _TimedKernels(tables.kernels, [], [])
        tables.kernels = self._timed
        return tables

    def profile(self, inputs: Mapping[str, Any] | Sequence[Any], repeat: int = 10) -> Profile:
        """Time every operator over `repeat` runs, after one that warms caches up and is not counted.

        Calls of one operator in the turns of a loop count together; an operator that did not run has the time 0. Each
        call counts with about a microsecond for reaching it from Python. Raises as `ProfiledModule.profile`.
        """
        if repeat < 1:
            raise OptionError(f"{repeat} runs are too few", next_step="Use 1 or more")
        call = self.bind(inputs)
        rows, seconds = [], []
        for _ in range(repeat + 1):
            self._timed.nanoseconds[:] = [0] * len(self._timed.nanoseconds)
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
            rows.append(list(self._timed.nanoseconds))
        return Profile(operator_times(self._operators, np.asarray(rows[1:])), tuple(seconds[1:]), call.outputs)
