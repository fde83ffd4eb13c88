"""States of loaded models, which persist between runs, as arrays by name."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import InputError, unknown
from mlfc.runtime.modules.runnable import Restorable, require_success
from mlfc.runtime.tensor.arrays import Values, bound, by_name, require_readable
from mlfc.support.locks import ForkSafeLock
from mlfc.support.tensor_info import Array, TensorInfo
from mlfc.support.text import Displayed

if TYPE_CHECKING:
    from mlfc.runtime.executors.graph_executor import GraphExecutor
    from mlfc.support.module_info import StateInfo


class ModelState(Displayed, Mapping[str, Array]):
    """The states of a model by name, which persist between runs.

    ``state[name]`` is a copy; ``state[name] = array`` and ``state.update(arrays)`` set states. ``dict(state)`` saves
    them all, and ``state.update(saved)`` restores them. Empty for models without state.

    Raises
    ------
    InputError
        For an unknown name, or an array of another shape or dtype.
    """

    def __init__(self, infos: Sequence[StateInfo] = (), memory: OwnStates | GraphStates | None = None) -> None:
        self.infos = tuple(infos)
        self._memory = memory

    def _facts(self) -> Mapping[str, object]:
        return {"states": self.infos}

    def _of(self, name: str) -> tuple[StateInfo, OwnStates | GraphStates]:
        for info in self.infos:
            if info.name == name and self._memory is not None:
                return info, self._memory
        raise InputError(unknown("state", str(name), [info.name for info in self.infos]))

    def __getitem__(self, name: str) -> Array:
        info, memory = self._of(name)
        return memory.read(info)

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __contains__(self, name: object) -> bool:
        return any(info.name == name for info in self.infos)

    def __iter__(self) -> Iterator[str]:
        return iter([info.name for info in self.infos])

    def __len__(self) -> int:
        return len(self.infos)

    def update(self, values: Mapping[str, Any]) -> None:
        """Set several states; no state is set if one of them does not match."""
        found = [self._of(name) for name in values]
        arrays = by_name(values, [info for info, _ in found], "state")
        for info, memory in found:
            memory.write(info, require_readable(arrays[info.name]))

    def reset(self) -> None:
        """Reset all states to their initial values."""
        if self._memory is not None:
            self._memory.reset()


class OwnStates:
    """States in memory that is passed to the code at each run; `lock` is held while it runs."""

    def __init__(self, memory: Array, lock: ForkSafeLock, reset: Callable[[], int]) -> None:
        self.memory, self.lock, self._reset = memory, lock, reset
        require_success(reset())

    @property
    def address(self) -> int:
        """Address of the memory."""
        return int(self.memory.ctypes.data)

    def _fetch(self) -> None:
        """Copy the states into `memory`."""

    def _store(self) -> None:
        """Copy `memory` to the address where the code reads the states."""

    def read(self, info: StateInfo) -> Array:
        """Return a copy of a state."""
        with self.lock:
            self._fetch()
            return self._part(info).copy()

    def write(self, info: StateInfo, array: Array) -> None:
        """Set a state."""
        with self.lock:
            self._fetch()
            self._part(info)[...] = array
            self._store()

    def reset(self) -> None:
        """Reset all states to their initial values."""
        with self.lock:
            require_success(self._reset())

    def _part(self, info: StateInfo) -> Array:
        start = info.offset or 0
        return self.memory[start : start + info.nbytes].view(info.numpy_dtype).reshape(info.shape)


class StaticStates(OwnStates):
    """States in a static array of code that several loaded models may share; each model keeps its own values.

    `key` identifies the code; `lock` is held while it runs, and must be held while `take` is called.
    """

    _owners: dict[tuple[str, str], weakref.ref[StaticStates]] = {}  # noqa: RUF012  (shared by all models)

    def __init__(
        self, key: tuple[str, str], lock: ForkSafeLock, nbytes: int, function: Callable[[str], Callable[..., int]]
    ) -> None:
        self.memory, self.lock, self._key = np.zeros(nbytes, np.uint8), lock, key
        self._reset, self._save, self._restore = (function(what) for what in ("reset", "save", "restore"))
        self._is_new = True

    def take(self) -> None:
        """Replace the states of the model that ran before with this model's."""
        found = self._owners.get(self._key)
        owner = found() if found is not None else None
        if owner is self:
            return
        if owner is not None:
            owner._load()
        if self._is_new:
            require_success(self._reset())
            self._is_new = False
        else:
            self._store()
        self._owners[self._key] = weakref.ref(self)

    def _load(self) -> None:
        require_success(self._save(ctypes.c_void_p(self.memory.ctypes.data)))

    def _fetch(self) -> None:
        self.take()
        self._load()

    def _store(self) -> None:
        require_success(self._restore(ctypes.c_void_p(self.memory.ctypes.data)))

    def reset(self) -> None:
        """Reset all states to their initial values."""
        with self.lock:
            self.take()
            require_success(self._reset())


class GraphStates:
    """States that are arguments of a graph."""

    def __init__(self, executor: GraphExecutor, infos: Sequence[StateInfo], lock: ForkSafeLock) -> None:
        self._executor, self._lock = executor, lock
        self._keys = executor.keys_of_states([info.name for info in infos])
        self._initial = {key: executor.get_input(key) for key in self._keys.values()}

    def read(self, info: StateInfo) -> Array:
        """Return a copy of a state."""
        with self._lock:
            array: Array = self._executor.get_input(self._keys[info.name])
            return array

    def write(self, info: StateInfo, array: Array) -> None:
        """Set a state."""
        with self._lock:
            self._executor.set_input(self._keys[info.name], array)

    def reset(self) -> None:
        """Reset all states to their initial values."""
        with self._lock:
            for key, array in self._initial.items():
                self._executor.set_input(key, array)


class LoadedModel(Restorable, Displayed):
    """A model in this process."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    _state = ModelState()
    _shows = ("inputs", "outputs")

    @property
    def state(self) -> ModelState:
        """States of the model by name, which persist between runs; shared with bound calls."""
        return self._state

    def reset_state(self) -> None:
        """Reset all states to their initial values."""
        self._state.reset()

    def new_outputs(self) -> dict[str, Array]:
        """Return fresh uninitialized arrays for the outputs."""
        return {info.name: np.empty(info.shape, info.numpy_dtype) for info in self.outputs}

    def _buffers(self, inputs: Values, outputs: Values | None) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return arrays for `bind`; raise InputError or ProblemsError if they cannot be used in place."""
        results = self.new_outputs() if outputs is None else bound(outputs, self.outputs, "output")
        return bound(inputs, self.inputs, "input"), results
