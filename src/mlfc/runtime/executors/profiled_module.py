"""A compiled model whose library times every operator, and shows what each computed."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import OptionError, RunError
from mlfc.runtime.executors.aot_module import AotModule, function_of
from mlfc.runtime.executors.profile import Profile, operator_times
from mlfc.runtime.ffi.native_code import NativeCode
from mlfc.support.content import Data

if TYPE_CHECKING:
    from mlfc.support.module_info import ModuleInterface, OperatorInfo

TRACE_FLAGS = (
    "-DMLFC_TRACE=1",
    "-DMLFC_TRACE_TICKS=mlfc_trace_nanoseconds",
    "-DMLFC_TRACE_RECORD=mlfc_trace_operator",
)
"""What turns the hook of generated code on, and takes it to `record_file`."""

_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)


def record_file() -> bytes:
    """Return the C that the hook calls in a library for `ProfiledModule`."""
    return Path(__file__).with_name("operator_record.c").read_bytes()


class ProfiledModule(AotModule):
    """An `AotModule` whose library was built from the same C with the hook turned on.

    Parameters
    ----------
    library : path or NativeCode
        Built with `TRACE_FLAGS`, `record_file` and the header ``mlfc_trace.h`` of the C runtime; or code with the
        same functions.
    description : mapping
        As for `AotModule`, with ``operators``.
    loaded : mapping of str to Data, optional
        As for `AotModule`.
    """

    def __init__(
        self,
        library: str | os.PathLike[str] | NativeCode,
        description: ModuleInterface,
        loaded: Mapping[str, Data] | None = None,
    ) -> None:
        super().__init__(library, description, loaded)
        self._operators: Sequence[OperatorInfo] = description.operators or ()
        self._time = function_of(library, "mlfc_trace_time", None)
        self._observe = function_of(library, "mlfc_trace_observe", None)

    def profile(self, inputs: Mapping[str, Any] | Sequence[Any], repeat: int = 10) -> Profile:
        """Time every operator over `repeat` runs, after one that warms caches up and is not counted.

        Parameters
        ----------
        inputs : mapping of str to array, or sequence of arrays
            As for `bind`.
        repeat : int
            Runs that are timed.

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
        nanoseconds = np.zeros((repeat, len(self._operators)), np.uint64)
        seconds = []
        with self._lock:
            try:
                for index in range(-1, repeat):
                    row = nanoseconds[max(index, 0)]
                    self._time(ctypes.c_void_p(row.ctypes.data), ctypes.c_int32(row.size))
                    start = time.perf_counter()
                    status = call()
                    seconds.append(time.perf_counter() - start)
                    if status != 0:
                        raise RunError(f"the model returned status {status}", next_step="Check the inputs' values")
            finally:
                self._time(None, ctypes.c_int32(0))
        return Profile(operator_times(self._operators, nanoseconds), tuple(seconds[1:]), call.outputs)

    def operator_outputs(self, inputs: Mapping[str, Any] | Sequence[Any]) -> tuple[bytes, ...]:
        """Run once, and return the bytes of every operator's output as they were when it ended.

        Raises
        ------
        InputError, ProblemsError
            If the inputs do not fit the model.
        RunError
            If the generated code reports failure.
        """
        call = self.bind(inputs)
        seen: dict[int, bytes] = {}

        def keep(index: int, data: int | None, nbytes: int) -> None:
            seen[index] = ctypes.string_at(data, nbytes) if data else b""

        with self._lock:
            observer = _OBSERVER(keep)
            self._observe(observer)
            try:
                status = call()
            finally:
                self._observe(None)
        if status != 0:
            raise RunError(f"the model returned status {status}", next_step="Check the inputs' values")
        return tuple(seen[index] for index in range(len(self._operators)))
