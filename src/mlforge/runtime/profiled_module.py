"""A compiled model whose library times every operator."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlforge.errors import OptionError, RunError
from mlforge.runtime.aot_module import AotModule
from mlforge.runtime.profile import Profile, operator_times
from mlforge.support.content import Data

TRACE_FLAG = "-DMLFORGE_TRACE"
"""What turns the hook of generated code on."""


def trace_files() -> dict[str, bytes]:
    """Return the C that the hook of generated code calls in a library for `ProfiledModule`, by path."""
    names = ("mlforge_trace.h", "mlforge_trace.c")
    return {f"trace/{name}": Path(__file__).with_name(name).read_bytes() for name in names}


class ProfiledModule(AotModule):
    """An `AotModule` whose library was built from the same C with the hook turned on.

    Parameters
    ----------
    library : path
        Built with `TRACE_FLAG` and `trace_files`.
    description : mapping
        As for `AotModule`, with ``operators``.
    loaded : mapping of str to Data, optional
        As for `AotModule`.
    """

    def __init__(
        self,
        library: str | os.PathLike[str],
        description: Mapping[str, Any],
        loaded: Mapping[str, Data] | None = None,
    ) -> None:
        super().__init__(library, description, loaded)
        self._operators: Sequence[Mapping[str, Any]] = description["operators"]
        self._record = ctypes.CDLL(os.fspath(library)).mlforge_trace_record
        self._record.restype = None

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
                    self._record(ctypes.c_void_p(row.ctypes.data), ctypes.c_int32(row.size))
                    start = time.perf_counter()
                    status = call()
                    seconds.append(time.perf_counter() - start)
                    if status != 0:
                        raise RunError(f"the model returned status {status}", next_step="Check the inputs' values")
            finally:
                self._record(None, ctypes.c_int32(0))
        return Profile(operator_times(self._operators, nanoseconds), tuple(seconds[1:]), call.outputs)
