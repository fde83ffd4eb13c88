"""Dynamic models in native code, and a variant that times each kernel call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlfc.errors import InputError, OptionError, ProblemsError, ToolchainError, unknown
from mlfc.runtime.devices.device import Device
from mlfc.runtime.executors.profile import MOST_EVENTS, Profile, Recorder, operator_times
from mlfc.runtime.executors.states import LoadedModel, ModelState, OwnStates
from mlfc.runtime.executors.vm.containers import Signature
from mlfc.runtime.executors.vm.engine import Engine, Find, Limits, PreparedCall, devices_of, output_misfit
from mlfc.runtime.executors.vm.native import RESET, TRACE, HasSymbols, aligned_zeros, number_of, pointer_to
from mlfc.runtime.tensor.arrays import Values, is_readable, only, require_readable, run_real
from mlfc.runtime.tensor.ndarray import NDArray, from_dlpack
from mlfc.support.dim_walk import counted, nbytes_of_type, tensor_in_call
from mlfc.support.dims import LARGEST
from mlfc.support.dtypes import to_numpy
from mlfc.support.executable import Executable, reset_symbol, state_offsets
from mlfc.support.locks import ForkSafeLock
from mlfc.support.module_info import OperatorInfo, StateInfo
from mlfc.support.tensor_info import Array
from mlfc.support.text import Displayed

TURN_LIMIT = 100_000_000
"""Default limit of loop iterations in a run; an empty loop takes minutes to reach it."""


class VmModel(LoadedModel):
    """A model whose shapes or control flow depend on its inputs.

    Parameters
    ----------
    executable : Executable
    code : HasSymbols
        The library with its main function.
    find : callable
        Returns a packed function that the code calls, by name.
    devices : sequence of Device
        For models with operators on devices.
    memory_limit : int, optional
        Limit of peak bytes in a run.
    turn_limit : int, optional
        Limit of iterations of all loops in a run; None for unlimited.

    Attributes
    ----------
    inputs, outputs : tuple of TensorInfo
        Dynamic dimensions are the names of their symbols, or ``?``. Sequences and optionals are `ContainerInfo`.
    """

    def __init__(
        self,
        executable: Executable,
        code: HasSymbols,
        find: Find,
        *,
        devices: Sequence[Device] = (),
        memory_limit: int | None = None,
        turn_limit: int | None = TURN_LIMIT,
    ) -> None:
        self.executable = executable
        self._taken, self._given = (Signature(each) for each in (executable.inputs, executable.outputs))
        self.inputs, self.outputs = self._taken.infos, self._given.infos
        self._names, self._result_names = ([info.name for info in infos] for infos in (self.inputs, self.outputs))
        self._parts = [value.name for value in executable.inputs]
        self.set_limits(memory_limit, turn_limit)
        by_code = devices_of(executable, devices)
        self._devices = frozenset(by_code.values())
        self._engine = Engine(executable, code, find, by_code)
        self._states: OwnStates | None = None
        if executable.states:
            symbol = reset_symbol(executable.name)
            address = code.address(symbol)
            if address is None:
                raise ToolchainError(f"the code does not export '{symbol}'", place=executable.name)
            memory, reset = aligned_zeros(state_offsets(executable)[-1]), RESET(address)
            reset.code = code  # type: ignore[attr-defined]  # the library must stay loaded while callers may call it
            self._states = OwnStates(memory, ForkSafeLock(), partial(reset, memory.ctypes.data))
            kept = zip(executable.states, executable.next_states, state_offsets(executable)[:-1], strict=True)
            infos = []
            for info, after, offset in kept:  # tensors of static shapes
                shape = tuple(size for size in info.extents if isinstance(size, int))
                infos.append(StateInfo(info.name, shape, info.dtype, next=after, offset=offset))
            self._state = ModelState(infos, self._states)
        self._is_plain = not (self._states or self.has_containers)

    def set_limits(self, memory_limit: int | None = None, turn_limit: int | None = TURN_LIMIT) -> None:
        """Set the limits of later runs, and of calls that are bound later; None for unlimited."""
        self._limits = Limits(_limit("memory_limit", memory_limit), _limit("turn_limit", turn_limit))

    @property
    def limits(self) -> dict[str, int | None]:
        """The limits of the last `set_limits`."""
        return {"memory_limit": self._limits.memory or None, "turn_limit": self._limits.turns or None}

    @property
    def extents(self) -> dict[str, tuple[int, int]]:
        """The bounds, minimum and maximum, of each dynamic dimension of the inputs."""
        symbols = [symbol for symbol in self.executable.symbols if symbol.name not in self._taken.counts]
        return {symbol.name: (symbol.low, LARGEST if symbol.high is None else symbol.high) for symbol in symbols}

    @property
    def has_containers(self) -> bool:
        """True if some inputs or outputs are sequences or optionals."""
        return self._taken.has_containers or self._given.has_containers

    def call(self, values: Sequence[Any]) -> list[Any]:
        """Run the model on arrays in order; return fresh arrays.

        Sequences and optionals are lists of arrays, or None.

        Raises
        ------
        InputError
            If arrays do not match the inputs, or a value differs from the one that the model requires.
        LimitError
            If the run exceeds a limit.
        RunError
            If it fails otherwise.
        """
        return [found.numpy() if isinstance(found, NDArray) else found for found in self.call_on_device(values)]

    def call_on_device(self, values: Sequence[Any]) -> list[Any]:
        """Run the model as `call` does; leave results that end on a device there."""
        if len(values) != len(self._names):
            raise InputError(f"expected {len(self._names)} inputs, got {len(values)}")
        arrays = self._taken.parts(values, _readable)
        given = [
            # a tensor on a device of the model that starts at its memory's first byte is used in place
            array
            if isinstance(array, NDArray) and array.device in self._devices and array.byte_offset == 0
            else _given(array, name)
            for array, name in zip(arrays, self._parts, strict=True)
        ]
        if self._states is None:
            return self._given.values(self._engine.run(given, self._limits))
        with self._states.lock:
            return self._given.values(self._engine.run(given, self._limits, self._states.address))

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference, on a mapping by name or on arrays in order; return fresh arrays by output name.

        Sequences and optionals are lists of arrays, or None. `real` is as for `AotModule.run`.
        """
        if real:
            return run_real(self, inputs)
        given = self.in_order(only(inputs))
        if self._is_plain and not self._devices and all(map(is_readable, given)):
            results: Sequence[Any] = self._engine.run(given, self._limits)
        else:
            results = self.call(given)
        return dict(zip(self._result_names, results, strict=True))

    def in_order(self, given: Values) -> list[Any]:
        """Return inputs in the model's order; raise InputError or ProblemsError if some are missing or unknown."""
        names = self._names
        if not isinstance(given, Mapping):
            if len(given) != len(names):
                raise InputError(f"expected {len(names)} inputs, got {len(given)}", next_step=f"They are: {names}")
            return list(given)
        if len(given) == len(names) and all(map(given.__contains__, names)):
            return [given[name] for name in names]
        faults = [InputError(unknown("input", str(name), names)) for name in given if name not in names]
        faults += [InputError("the input is missing", place=name) for name in names if name not in given]
        if len(faults) > 1:
            raise ProblemsError(faults)
        raise faults[0]

    def bind(self, inputs: Values, outputs: Values | None = None) -> BoundVm:
        """Return a callable that runs on these inputs; results are copied into `outputs`, if given.

        Raises
        ------
        InputError, ProblemsError
            If inputs are missing or unknown, or an output is read-only or cannot match a result of the model.
        """
        sources = dict(zip(self._names, self.in_order(inputs), strict=True))
        names = self._result_names
        if outputs is not None and self._given.has_containers:
            raise InputError(
                "outputs that are sequences or optionals cannot be bound: each call creates new ones",
                next_step="Bind only the inputs",
            )
        if outputs is None:
            return BoundVm(self, sources, None)
        given = outputs if isinstance(outputs, Mapping) else dict(zip(names, outputs, strict=True))
        targets = {name: given[name] for name in names}
        for info, target in zip(self.outputs, targets.values(), strict=True):
            if not isinstance(target, np.ndarray):
                raise InputError(f"the output is a {type(target).__name__}, not an array of numpy", place=info.name)
            if not target.flags.writeable:
                raise InputError("the output cannot be written", place=info.name, next_step="Bind a copy of it")
            pairs = zip(info.shape, target.shape, strict=False)
            fits = target.dtype == to_numpy(info.dtype) and target.ndim == len(info.shape)
            if not fits or any(isinstance(own, int) and own != has for own, has in pairs):
                raise output_misfit(info.name, to_numpy(info.dtype), info.shape, target)
        return BoundVm(self, sources, targets)

    def new_outputs(self) -> dict[str, Array]:
        """Return fresh arrays for the outputs, with the minimum of each dynamic dimension."""
        lows = {symbol.name: symbol.low for symbol in self.executable.symbols}
        if self._given.has_containers:
            raise InputError("outputs that are sequences or optionals are new at each run", next_step="Call run")
        return {
            value.name: np.zeros(
                [extent if isinstance(extent, int) else 0 if extent is None else lows[extent]
                 for extent in value.extents],
                to_numpy(value.dtype),
            )
            for value in self.executable.outputs
        }  # fmt: skip


class BoundVm(Displayed):
    """A model bound to fixed inputs; ``call()`` runs it on their current contents, and returns 0.

    A call has little overhead: aligned inputs are read in place, others are copied to memory that is reused; results
    are written directly to contiguous outputs.

    Without arrays for the outputs, `outputs` has new ones after each call, as their shapes may change, and is empty
    during a call: memory of results that the caller has dropped is reused.
    """

    _shows = ("inputs", "outputs")

    def __init__(self, model: VmModel, inputs: dict[str, Any], outputs: dict[str, Array] | None) -> None:
        self._model = model
        self._engine, self._limits, self._states = model._engine, model._limits, model._states
        self._fixed = outputs
        self.inputs = inputs
        self.outputs: dict[str, Array] = outputs or {}
        # runs that have ended; several threads may call
        self._idle: list[Callable[[], list[Array]]] = [self._prepared()]

    def __call__(self) -> int:
        """Run the model; raise as `VmModel.call` does."""
        try:
            run = self._idle.pop()
        except IndexError:
            run = self._prepared()
        if self._fixed is None:
            self.outputs = {}
            self.outputs = dict(zip(self._model._result_names, run(), strict=True))
        else:
            run()
        self._idle.append(run)
        return 0

    def _prepared(self) -> Callable[[], list[Array]]:
        """Return a function that runs the model and returns its results; none if it wrote them to their targets."""
        targets = None if self._fixed is None else list(self._fixed.values())
        are_contiguous = targets is None or all(target.flags.c_contiguous for target in targets)
        if self._engine.devices or not are_contiguous or self._model.has_containers:
            return self._run
        states = self._states
        address = 0 if states is None else states.address
        run = _BoundRun(PreparedCall(self._engine, self._limits, targets), self.inputs, targets is None, address)
        if states is None:
            return run

        def continued() -> list[Array]:
            with states.lock:
                return run()

        return continued

    def _run(self) -> list[Array]:
        results = self._model.call(list(self.inputs.values()))
        if self._fixed is None:
            return results
        for (name, target), array in zip(self._fixed.items(), results, strict=True):
            if target.shape != array.shape or target.dtype != array.dtype:
                raise output_misfit(name, array.dtype, array.shape, target)
        for target, array in zip(self._fixed.values(), results, strict=True):
            target[...] = array
        return []


class _BoundRun:
    """Run on fixed inputs."""

    def __init__(self, call: PreparedCall, inputs: Mapping[str, Any], has_results: bool, state: int) -> None:
        self._call = call
        self._state = state
        self._has_results = has_results
        self._copies: list[tuple[Array, Array]] = []
        self._converted: list[tuple[int, str, Any]] = []
        self._keep: list[Array] = []
        for number, (name, value) in enumerate(inputs.items()):
            if not isinstance(value, np.ndarray):
                self._converted.append((number, name, value))
                continue
            array = call.set_input(number, _given(value, name))
            if not np.may_share_memory(array, value) or array.dtype != value.dtype:
                self._copies.append((array, value))
            # views, because an array with other references cannot be resized
            self._keep.append(array.view())

    def __call__(self) -> list[Array]:
        for array, value in self._copies:
            np.copyto(array, value)
        kept = [self._call.set_input(number, _given(value, name)) for number, name, value in self._converted]
        self._call(self._state)
        del kept
        return self._call.results() if self._has_results else []


def _limit(name: str, value: int | None) -> int:
    """Return a limit in the form of the native code: 0 for unlimited."""
    if value is None:
        return 0
    if not 0 < value < 2**63:
        raise OptionError(f"expected a positive number or None, got {value}", place=name)
    return value


def _given(value: Any, name: str) -> Array:
    """Return an input as a contiguous array of a dtype that tensors support."""
    array = np.asarray(value) if isinstance(value, np.ndarray) else _host_array(value, name)
    if number_of(array.dtype) is None:
        raise InputError(f"tensors cannot have the dtype {array.dtype}", place=name)
    return require_readable(array)


def _readable(value: Any, name: str) -> Array:
    """Return a tensor of a sequence as an array."""
    return require_readable(_host_array(value, name))


def _host_array(value: Any, name: str) -> Array:
    if isinstance(value, NDArray):
        return value.numpy()
    if isinstance(value, np.generic | int | float | bool | list | tuple):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        raise InputError(
            f"the input is a {type(value).__name__}, not an array",
            place=name,
            next_step="Give a numpy array or an array of any DLPack library",
        )
    return from_dlpack(value).numpy()


class ProfiledVm(VmModel):
    """A `VmModel` that times every kernel call; `operators` describe the call sites, in order."""

    def __init__(
        self, executable: Executable, code: HasSymbols, find: Find, operators: Sequence[OperatorInfo] = ()
    ) -> None:
        super().__init__(executable, code, find)
        self._operators = [*operators]
        # for each call, its site in the code, start, nanoseconds, and sizes
        self._calls: list[tuple[int, int, int, tuple[int, ...]]] = []
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
            self._calls.append((place, self._started, passed, tuple(numbers[:count])))

    def profile(self, inputs: Values, repeat: int = 10) -> Profile:
        """Time every operator over `repeat` runs, after one warm-up run.

        The calls of one operator in all iterations of a loop are summed, as are their bytes and multiply-accumulates;
        an operator that did not run has the time 0. Raises as `ProfiledModule.profile`.
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
            for place, began, passed, _ in self._calls if run >= 0 else ():
                recorder.add(run, place, 0, began, passed)
        table = [row + [0] * (len(self._operators) - len(row)) for row in rows[1:]]
        times = operator_times(self._operators_of_run(), np.asarray(table))
        return Profile(times, tuple(seconds[1:]), call.outputs, recorder.timeline())

    def _operators_of_run(self) -> list[OperatorInfo]:
        """Return the operators with the work of the last run: summed over all calls, and the types of the last call."""
        count = len(self._operators)
        macs, nbytes, tensors = [0] * count, [0] * count, [item.tensors for item in self._operators]
        for place, _, _, numbers in self._calls:
            known = self._operators[place]
            work = known.macs if known.run_macs is None else counted(known.run_macs, numbers)
            macs[place] += max(0, work or 0)
            tensors[place] = tuple(tensor_in_call(text, numbers) for text in known.tensors)
            nbytes[place] += sum(map(nbytes_of_type, tensors[place]))
        return [
            OperatorInfo(item.function, item.nodes, macs[place], nbytes[place], tensors[place])
            for place, item in enumerate(self._operators)
        ]
