"""A compiled model in a shared library, called through its C interface or through the API of TVM's executors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from mlfc.errors import ArchiveError, InputError, RunError, ToolchainError
from mlfc.runtime.devices.device import Device, cpu
from mlfc.runtime.executors.states import LoadedModel, ModelState, OwnStates, StaticStates
from mlfc.runtime.ffi.library_names import is_in_memory
from mlfc.runtime.ffi.native_code import NativeCode
from mlfc.runtime.modules.runnable import Runnable, require_success
from mlfc.runtime.tensor.arrays import Expected, Values, address_of, aligned, by_name, counts, run_real
from mlfc.runtime.threads import address_in, share_pool
from mlfc.support.c_names import names_in_tables
from mlfc.support.content import Data, chunks_of, nbytes_of
from mlfc.support.locks import ForkSafeLock
from mlfc.support.tensor_info import Array, TensorInfo
from mlfc.support.text import Displayed

if TYPE_CHECKING:
    from mlfc.support.module_info import ModuleInterface

_MAPPED = ("inputs", "outputs")
Library: TypeAlias = "str | os.PathLike[str] | NativeCode"
_Prepared: TypeAlias = "tuple[Any, Any, Callable[[], int]]"
_locks: WeakValueDictionary[tuple[str, str], ForkSafeLock] = WeakValueDictionary()
_locks_guard = ForkSafeLock()


class BoundCall(Displayed, partial[int]):
    """A model bound to fixed buffers, `inputs` and `outputs` by name, which it keeps alive.

    ``call()`` runs it on the current contents of the input arrays, and returns 0 on success. It is the generated
    function with its arguments: a call runs no Python code. For a module whose workspace contains inputs and outputs, a
    call copies them in and out.
    """

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    _shows = ("inputs", "outputs")


class AotModule(LoadedModel):
    """A model compiled ahead of time.

    Parameters
    ----------
    library : path or NativeCode
        The shared library compiled from the archive's C, or code that is already in memory.
    description : ModuleInterface
        With ``external_workspace``, the caller passes memory of the sizes of ``pools``, or of the workspace.
    loaded : mapping of str to Data, optional
        Contents, by name, of the constant pools that the caller loads.

    Notes
    -----
    States belong to the module: `run`, the callables of `bind` and executors share them, and each module of one library
    has its own states. Calls of a module with states are serialized.

    The workspace is static in the library, so a module computes one inference at a time: `run` takes a lock. Callables
    that `bind` returns do not: never call two of one module concurrently, unless it is in an exported library, whose
    functions serialize calls. A module built with an external workspace allocates one for each `bind`, and its bound
    calls may run concurrently.
    """

    _reuses_calls = True  # structs of pointers are reused from run to run
    _own_states: tuple[Array, ...] = ()
    _static_states: StaticStates | None = None

    def __init__(
        self, library: Library, description: ModuleInterface, loaded: Mapping[str, Data] | None = None
    ) -> None:
        self._describe(description.inputs, description.outputs)
        self._pools: Sequence[int] = ()
        if description.external_workspace:
            size = description.memory.workspace_bytes
            self._pools = [pool.nbytes for pool in description.pools] or ([size] if size else [])
        self._constants = [filled(data) for data in (loaded or {}).values()]
        entry = description.entry or ""
        self._lock = _lock(library, description)
        try:  # in libraries with several models, a function that waits for the other models
            self._function = function_of(library, f"{entry}_in_turn")
        except ToolchainError:
            self._function = function_of(library, entry)
        self._mappers: tuple[Any, ...] = ()
        if description.workspace_io:
            self._mappers = tuple(self._mapper(library, entry, kind) for kind in _MAPPED)
            self._reuses_calls = False
        if description.states:
            self._keep_states(library, description)

    def _describe(self, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]) -> None:
        """Set the inputs and outputs, which are host arrays."""
        self.inputs, self.outputs = inputs, outputs
        self._taken, self._given = Expected.of(inputs), Expected.of(outputs)
        self._idle: list[_Prepared] = []  # structs of finished runs; several runs may be active at once
        self.device: Device = cpu()

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference.

        Parameters
        ----------
        *inputs
            One mapping from input names to arrays, or the arrays in the order of `inputs`. numpy arrays and arrays of
            any DLPack library are read in place if they are contiguous.
        real : bool
            Pass and return real numbers: inputs are quantized by their scale and zero point, rounded half to even and
            saturated; quantized outputs are returned as float32.

        Returns
        -------
        dict of str to ndarray
            Fresh arrays by output name, in the model's order.

        Raises
        ------
        InputError, ProblemsError
            If inputs are missing, unknown, or of a wrong shape or dtype; reports all faults at once. With `real`, if
            the quantization of a tensor is not recorded.
        RunError
            If the generated code reports failure.
        """
        if real:
            return run_real(self, inputs)
        arrays, outputs = self._taken.arrays(inputs), self._given.new()
        if not self._reuses_calls:
            call: Callable[[], int] = self._call(dict(zip(self._taken.names, arrays, strict=True)), outputs)
        else:
            try:
                prepared = self._idle.pop()
            except IndexError:
                # structs of pointers, reused from run to run
                given, taken = ((ctypes.c_void_p * max(1, len(each)))() for each in (arrays, outputs))
                prepared = given, taken, self._on(given, taken)
            sources, results, call = prepared
            sources[: len(arrays)] = list(map(address_of, arrays))
            results[: len(outputs)] = list(map(address_of, outputs.values()))
        with self._lock:
            status = call()
        if self._reuses_calls:
            self._idle.append(prepared)
        require_success(status)
        return outputs

    def bind(self, inputs: Values, outputs: Values | None = None) -> BoundCall:
        """Return a callable that runs on these buffers without running Python code.

        Parameters
        ----------
        inputs, outputs : mapping of str to array, or sequence of arrays
            Contiguous arrays; `outputs` defaults to fresh ones. They must not share memory.

        Raises
        ------
        InputError, ProblemsError
            If they do not fit the model or cannot be used in place.
        """
        sources, results = self._buffers(inputs, outputs)
        taken = list(sources.items())
        for name, array in results.items():
            other = next((other for other, memory in taken if np.may_share_memory(array, memory)), None)
            if other is not None:
                raise InputError(f"the output shares memory with {other}", place=name, next_step="Use a copy")
            taken.append((name, array))
        return self._call(sources, results)

    def _keep_states(self, library: Library, description: ModuleInterface) -> None:
        size = description.memory.state_bytes
        for info in description.states:
            if info.offset is None or info.offset + info.nbytes > size:
                raise ArchiveError(
                    f"the state '{info.name}' is not within the {size:,} bytes of all states",
                    next_step="Export the archive again",
                )
        prefix = (description.entry or "").removesuffix("_run")

        def function(what: str) -> Any:
            return function_of(library, f"{prefix}_state_{what}")

        memory: StaticStates | OwnStates
        if description.external_workspace:
            given = _pointers([*map(new_pool, self._pools), new_pool(size), *self._constants])
            own = given.arrays[len(self._pools)]
            memory = OwnStates(own, self._lock, partial(function("reset"), ctypes.byref(given)))
            self._own_states = (own,)
        else:
            memory = self._static_states = StaticStates(_key(library, prefix), self._lock, size, function)
        self._state = ModelState(description.states, memory)

    def _call(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> BoundCall:
        if self._mappers:
            call = self._on_states(self._copying_call(self._memory(), inputs, outputs))
        else:
            call = self._on(_pointers(tuple(inputs.values())), _pointers(tuple(outputs.values())))
        call.inputs, call.outputs = inputs, outputs
        return call

    def _on(self, sources: Any, results: Any) -> BoundCall:
        """Return a call on structs of pointers, with its own workspace if the workspace is external."""
        arguments = [sources, results, *self._memory()]
        return self._on_states(BoundCall(self._function, *map(ctypes.byref, arguments)))

    def _memory(self) -> list[Any]:
        pools = [*map(new_pool, self._pools), *self._own_states, *self._constants]
        return [_pointers(pools)] if pools else []

    def _on_states(self, call: BoundCall) -> BoundCall:
        def continued() -> int:
            with self._lock:
                if self._static_states is not None:
                    self._static_states.take()
                return call()

        return BoundCall(continued) if len(self._state) else call

    def _mapper(self, library: Library, entry: str, kind: str) -> Any:
        """Return the function that returns the addresses of all inputs, or all outputs, in the workspace."""
        count = max(1, len(self.inputs if kind == "inputs" else self.outputs))
        fields = [(f"tensor_{index}", ctypes.c_void_p) for index in range(count)]
        result = type(f"Mapped{kind.title()}", (ctypes.Structure,), {"_fields_": fields})
        return function_of(library, f"{entry.removesuffix('_run')}_map_{kind}", result)

    def _copying_call(self, given: Sequence[Any], inputs: dict[str, Array], outputs: dict[str, Array]) -> BoundCall:
        arguments = tuple(map(ctypes.byref, given))
        places = [mapper(*arguments) for mapper in self._mappers]
        copies_in, copies_out = (
            [
                (array, getattr(place, field), array.nbytes)
                for array, (field, _) in zip(arrays.values(), place._fields_, strict=False)
            ]
            for arrays, place in zip((inputs, outputs), places, strict=True)
        )

        def run() -> int:
            for array, pointer, nbytes in copies_in:
                ctypes.memmove(pointer, array.ctypes.data, nbytes)
            status: int = self._function(*arguments)
            for array, pointer, nbytes in copies_out:
                ctypes.memmove(array.ctypes.data, pointer, nbytes)
            return status

        return BoundCall(run)


def loaded_pools(description: ModuleInterface, code: Mapping[str, Data]) -> dict[str, Data]:
    """Return the contents, by name, of the constant pools that a module's caller loads.

    `code` contains the files of these pools beside the generated ``src/...``. Raises ArchiveError if a file is missing
    or its size differs from the description.
    """
    loaded = {}
    for pool in description.constant_pools:
        if pool.file is None:
            continue
        data = code.get(pool.file)
        if data is None or nbytes_of(data) != pool.nbytes:
            found = "missing" if data is None else f"{nbytes_of(data)} bytes long"
            raise ArchiveError(
                f"the file with the {pool.nbytes} bytes of constants '{pool.name}' is {found}",
                place=pool.file,
                next_step="Export the archive again",
            )
        loaded[pool.name] = data
    return loaded


def new_pool(size: int) -> Array:
    """Return new memory with the pool alignment of the C interface."""
    try:
        return aligned(size)
    except MemoryError:
        raise RunError(
            f"out of memory for {size:,} bytes of workspace", next_step="Run it on a machine that has as much"
        ) from None


def filled(data: Data) -> Array:
    """Return memory with the contents of a constant pool."""
    joined = np.frombuffer(b"".join(bytes(chunk) for chunk in chunks_of(data)), np.uint8)
    memory = new_pool(joined.size)
    memory[:] = joined
    return memory


def _pointers(arrays: Sequence[Array]) -> Any:
    """Return the C interface's struct of pointers, which keeps the arrays' memory alive."""
    struct = (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))
    struct.arrays = tuple(arrays)  # type: ignore[attr-defined]  # ctypes arrays take attributes
    return struct


def _lock(library: Library, description: ModuleInterface) -> ForkSafeLock:
    """Return the lock of a static workspace, shared by all modules loaded from the same library."""
    key = _key(library, "" if description.workspace_peers else description.entry or "")
    with _locks_guard:
        lock = _locks.get(key)
        if lock is None:
            # reentrant: profiles hold it while they run bound calls, which may take it
            lock = _locks[key] = ForkSafeLock(reentrant=True)
        return lock


def _key(library: Library, name: str) -> tuple[str, str]:
    """Return the identity of a library's code and one symbol name."""
    if not isinstance(library, (str, os.PathLike)):
        return library.place, name
    path = os.fspath(library)
    return path if is_in_memory(path) else os.path.realpath(path), name


def function_of(library: Library, symbol: str, result: Any = ctypes.c_int32) -> Any:
    """Return a function of a library, or of code in memory; raise ToolchainError if it is missing."""
    if not isinstance(library, (str, os.PathLike)):
        address = library.address(symbol)
        if address is None:
            cause = f"the compiled code has no function '{symbol}'"
            raise ToolchainError(cause, place=library.place, next_step="Compile the model again")
        found = ctypes.CFUNCTYPE(result)(address)
        found.code = library  # type: ignore[attr-defined]  # the library must stay loaded while callers may call it
        return found
    try:
        loaded = ctypes.CDLL(os.fspath(library))
        share_pool(lambda name: address_in(loaded, name))
        function = getattr(loaded, symbol)
    except (OSError, AttributeError) as error:
        raise ToolchainError(
            f"the compiled model does not load: {error}",
            place=os.fspath(library),
            next_step="Remove this file and load the archive again",
        ) from error
    function.restype = result
    return function


class AotExecutor(Displayed):
    """An executor with TVM's API: set inputs, run the model, get outputs.

    Parameters
    ----------
    model : Runnable
        The model to run. Inputs are zeros until they are set.
    """

    def __init__(self, model: Runnable) -> None:
        self.model = model
        zeros = {info.name: np.zeros(info.shape, info.numpy_dtype) for info in model.inputs}
        self._call = model.bind(zeros)

    def _facts(self) -> Mapping[str, object]:
        return {"inputs": self.model.inputs, "outputs": self.model.outputs}

    def _input(self, key: str | int) -> TensorInfo:
        infos = self.model.inputs
        index = self.get_input_index(key) if isinstance(key, str) else key
        if not counts(index, len(infos)):
            known = ", ".join(map(str, infos)) or "none"
            raise InputError("the model has no such input", place=str(key), next_step=f"It has: {known}")
        return infos[index]

    def set_input(self, key: str | int | None = None, value: Any = None, /, **inputs: Any) -> None:
        """Copy values into inputs: one by name or index, others by name."""
        given: list[tuple[str | int, Any]] = [*inputs.items()]
        if key is not None:
            given.append((key, value))
        for name, array in given:
            info = self._input(name)
            self._call.inputs[info.name][...] = by_name({info.name: array}, [info], "input")[info.name]

    def get_input(self, key: str | int) -> Array:
        """Return a copy of an input."""
        return self._call.inputs[self._input(key).name].copy()

    def run(self, **inputs: Any) -> None:
        """Set `inputs`, if any are given, and run; raise RunError if the model reports failure."""
        if inputs:
            self.set_input(**inputs)
        require_success(self._call())

    def get_output(self, index: int, out: Array | None = None) -> Array:
        """Return a copy of output `index`, in `out` if that is given."""
        infos = self.model.outputs
        if not counts(index, len(infos)):
            raise InputError(f"output {index} is out of range: the model has {len(infos)}")
        result = self._call.outputs[infos[index].name]
        if out is None:
            return result.copy()
        by_name([out], [infos[index]], "output")[infos[index].name][...] = result
        return out

    def get_num_inputs(self) -> int:
        """Return the number of inputs."""
        return len(self.model.inputs)

    def get_num_outputs(self) -> int:
        """Return the number of outputs."""
        return len(self.model.outputs)

    def get_input_index(self, name: str) -> int:
        """Return the index of an input, -1 if no input has this name.

        As in TVM's executor, names are compared by their letters and digits unless one matches exactly.
        """
        names = [info.name for info in self.model.inputs]
        if name not in names:
            names, (name,) = names_in_tables(names), names_in_tables([name])
        return names.index(name) if name in names else -1

    def get_input_name(self, index: int) -> str:
        """Return the name of an input."""
        return self._input(index).name

    def get_input_info(self) -> dict[str, TensorInfo]:
        """Return the `TensorInfo` of each input by name."""
        return {info.name: info for info in self.model.inputs}

    def get_output_info(self) -> dict[str, TensorInfo]:
        """Return the `TensorInfo` of each output by name."""
        return {info.name: info for info in self.model.outputs}
