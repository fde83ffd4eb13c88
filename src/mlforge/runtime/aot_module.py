"""A compiled model in a shared library, called through its C interface."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from mlforge.errors import InputError, RunError, ToolchainError
from mlforge.runtime.arrays import Array, by_name, require_bound, require_readable
from mlforge.runtime.device import Device, cpu
from mlforge.runtime.tensor_info import TensorInfo

_WORKSPACE_ALIGNMENT = 64


_locks: WeakValueDictionary[tuple[str, str], threading.Lock] = WeakValueDictionary()
_locks_guard = threading.Lock()


class BoundCall(partial[int]):
    """A model on fixed buffers: ``call()`` runs it on what the input arrays hold now, and returns 0 on success.

    It is the generated function itself with its arguments: nothing of Python runs in a call.

    Attributes
    ----------
    inputs, outputs : dict of str to ndarray
        The bound buffers, kept alive as long as this object.
    """

    inputs: dict[str, Array]
    outputs: dict[str, Array]


class AotModule:
    """A model compiled ahead of time.

    Parameters
    ----------
    library : path
        The shared library that the archive's C was compiled to.
    description : mapping
        The module's checked ``mlforge`` object of ``metadata.json``: ``entry``, ``inputs``, ``outputs``, ``memory``.
        With ``pools``, the sizes of the workspaces that the caller passes in, instead of ``external_workspace``.

    Notes
    -----
    The workspace is one static array of the library, so a module computes one inference at a time: `run` takes a
    lock. Callables that `bind` returns do not; never call two of one module at once. A module built with an
    external workspace has one of its own for each `bind`, and its bound calls may run at the same time.
    """

    def __init__(self, library: str | os.PathLike[str], description: Mapping[str, Any]) -> None:
        self.inputs = tuple(TensorInfo.from_json(entry) for entry in description["inputs"])
        self.outputs = tuple(TensorInfo.from_json(entry) for entry in description["outputs"])
        self.device: Device = cpu()
        external = [description["memory"]["workspace_bytes"]] if description.get("external_workspace") else []
        self._pools: Sequence[int] = description.get("pools", external)
        self._lock = _lock(os.fspath(library), description)
        self._function = _entry(os.fspath(library), description["entry"])

    def run(self, *inputs: Any) -> dict[str, Array]:
        """Run one inference.

        Parameters
        ----------
        *inputs
            One mapping from input names to arrays, or the arrays in the order of `inputs`. numpy arrays and arrays of
            any DLPack library are read where they lie if they are contiguous.

        Returns
        -------
        dict of str to ndarray
            Fresh arrays by output name, in the model's order.

        Raises
        ------
        InputError, ProblemsError
            If inputs are missing, unknown, mis-shaped or mis-typed; all faults at once.
        RunError
            If the generated code reports failure.
        """
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else inputs
        arrays = {name: require_readable(array) for name, array in by_name(given, self.inputs, "input").items()}
        outputs = self.new_outputs()
        call = self._call(arrays, outputs)
        with self._lock:
            status = call()
        if status != 0:
            raise RunError(f"the model returned status {status}", next_step="Check the inputs' values")
        return outputs

    def bind(
        self, inputs: Mapping[str, Any] | Sequence[Any], outputs: Mapping[str, Any] | Sequence[Any] | None = None
    ) -> BoundCall:
        """Return a callable that runs on these very buffers, with no work in Python at a call.

        Parameters
        ----------
        inputs, outputs : mapping of str to array, or sequence of arrays
            Contiguous arrays; `outputs` defaults to fresh ones. They must not share memory.

        Raises
        ------
        InputError, ProblemsError
            If they do not fit the model or cannot be used in place.
        """
        sources = by_name(inputs, self.inputs, "input")
        results = self.new_outputs() if outputs is None else by_name(outputs, self.outputs, "output")
        require_bound(sources, "input")
        require_bound(results, "output")
        taken = list(sources.items())
        for name, array in results.items():
            for other, memory in taken:
                if np.may_share_memory(array, memory):
                    raise InputError(f"the output shares memory with {other}", place=name, next_step="Use a copy")
            taken.append((name, array))
        return self._call(sources, results)

    def new_outputs(self) -> dict[str, Array]:
        """Return fresh uninitialized arrays for the outputs."""
        return {info.name: np.empty(info.shape, info.numpy_dtype) for info in self.outputs}

    def _call(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> BoundCall:
        arguments = [_pointers(inputs), _pointers(outputs)]
        if self._pools:
            arguments.append(_pointers({str(index): _workspace(size) for index, size in enumerate(self._pools)}))
        call = BoundCall(self._function, *map(ctypes.byref, arguments))
        call.inputs, call.outputs = inputs, outputs
        return call


def _workspace(size: int) -> Array:
    memory = np.empty(size + _WORKSPACE_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _WORKSPACE_ALIGNMENT
    return memory[start:]


def _pointers(arrays: Mapping[str, Array]) -> Any:
    """Return the struct of pointers that the C interface takes; it keeps the arrays' memory alive."""
    struct = (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays.values()))
    struct.arrays = tuple(arrays.values())  # type: ignore[attr-defined]  # ctypes arrays take attributes
    return struct


def _lock(library: str, description: Mapping[str, Any]) -> threading.Lock:
    """Return the lock of a static workspace: of all modules that work in it, however often each is loaded."""
    key = (os.path.realpath(library), "" if description.get("workspace_peers") else description["entry"])
    with _locks_guard:
        lock = _locks.get(key)
        if lock is None:
            lock = _locks[key] = threading.Lock()
        return lock


def _entry(library: str, symbol: str) -> Any:
    try:
        function = getattr(ctypes.CDLL(library), symbol)
    except (OSError, AttributeError) as error:
        raise ToolchainError(
            f"the compiled model does not load: {error}",
            place=library,
            next_step="Remove this file and load the archive again",
        ) from error
    function.restype = ctypes.c_int32
    return function
