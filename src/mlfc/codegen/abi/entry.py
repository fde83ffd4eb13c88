"""Descriptions of the modules that a library exports, from which the C of their functions is rendered.

Modules of the graph executor call their packed operators in order, and read constants where the library stores the
parameters of their graph. Dynamic models return fresh outputs in the shapes of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

from mlfc.codegen.c_interface import tensors
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.host.tvm import c_dtype
from mlfc.codegen.unit import SHARED_MODULE, Unit
from mlfc.errors import InternalError, OptionError
from mlfc.memory import Storage
from mlfc.support import dtypes
from mlfc.support.c_names import names_in_tables
from mlfc.support.dims import bounds
from mlfc.support.executable import NUMBERED_DTYPES, Executable, release_symbol, reset_symbol, run_symbol, state_offsets
from mlfc.support.params import ParameterOffsets
from mlfc.tir.program import Value

_SHARED_GATE = f"tvmgen_{SHARED_MODULE}_gate"


def require_no_loaded(pools: Iterable[str], module: str) -> None:
    """Raise OptionError if the caller of the C interface must load constants into any of `pools`."""
    names = ", ".join(pools)
    if names:
        raise OptionError(
            f"functions on tensors have no argument for constants that the caller loads: {names}",
            place=module,
            next_step="Compile the module without --load-constants",
        )


@dataclass(frozen=True)
class HostTensor:
    """An input or output."""

    name: str  # the name in the model
    field: str  # the field in the struct of the C interface
    shape: tuple[int | str | None, ...]  # a dynamic dimension is the name of its symbol, or None
    dtype: str

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The shape as the C runtime has it: a dynamic dimension is -1."""
        return tuple(item if isinstance(item, int) else -1 for item in self.shape)

    @property
    def c_dtype(self) -> str:
        """The initializer of a ``DLDataType``."""
        return c_dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes; 0 for a dynamic shape."""
        known = self.dimensions
        return 0 if -1 in known else prod(known) * dtypes.nbytes(dtypes.element(self.dtype))


@dataclass(frozen=True)
class HostModule:
    """A module compiled ahead of time that hosts run through functions on the addresses of all tensors."""

    name: str
    inputs: tuple[HostTensor, ...]
    outputs: tuple[HostTensor, ...]
    # name and size in bytes of each memory that callers of the C interface pass in: the workspace of the runtime
    pools: tuple[tuple[str, int], ...] = ()
    workspace_io: bool = False  # inputs and outputs are in the workspace, so they are copied there and back
    state_bytes: int = 0  # size of the state memory, one of those that the caller passes in

    @property
    def prefix(self) -> str:
        """The prefix of the module's symbols."""
        return f"tvmgen_{self.name}"

    @property
    def functions(self) -> dict[str, str]:
        """C function names, keyed by the names under which the executor looks them up."""
        return {
            f"{self.prefix}_run": f"{self.prefix}_packed_run",
            f"{self.prefix}_get_c_metadata": f"{self.prefix}_packed_metadata",
        }

    @property
    def input_names(self) -> list[str]:
        """The names of inputs in TVM's tables."""
        return names_in_tables(tensor.name for tensor in self.inputs)


def host_module(unit: Unit, code: GeneratedCode) -> HostModule:
    """Return a module that was just compiled; raise OptionError if its caller must load constants."""
    require_no_loaded(code.loaded, unit.module)
    groups = [
        tuple(HostTensor(item.value.name, item.field, tuple(item.value.shape), item.value.dtype) for item in group)
        for group in tensors(unit.program)
    ]
    pools = unit.plan.pools if code.external_workspace else ()
    given = tuple((pool.name, pool.nbytes) for pool in pools)
    state_bytes = unit.plan.state_bytes if code.external_workspace else 0
    return HostModule(unit.module, groups[0], groups[1], given, unit.workspace_io, state_bytes)


@dataclass(frozen=True, eq=False)
class AotEntry:
    """A module that a library exports; this class is for modules compiled ahead of time."""

    unit: Unit
    code: GeneratedCode
    module: HostModule
    defines_gate: bool = False  # whether this file defines the gate of modules that share their workspace

    @property
    def tensors(self) -> tuple[HostTensor, ...]:
        """The inputs, followed by the outputs."""
        return (*self.module.inputs, *self.module.outputs)

    @property
    def slots(self) -> int:
        """The length of arrays with one element per tensor; at least 1, as C does not have empty arrays."""
        return max(1, len(self.tensors))

    kind: ClassVar[str] = "aot"
    """The template of the functions that run the module is ``run_<kind>.c``."""

    @property
    def has_static_memory(self) -> bool:
        """True if runs use static memory of the library."""
        return not self.code.external_workspace

    @property
    def own_headers(self) -> tuple[str, ...]:
        """The headers that the file includes beside the runtime's."""
        return (self.code.header_name,) if self.code.header_name else ()

    @property
    def keeps_state(self) -> bool:
        """True if the module keeps tensors between runs, so it has a function that resets them."""
        return bool(self.unit.program.states)

    @property
    def gate(self) -> str:
        """The gate that serializes calls; empty if there is none."""
        if not (self.has_static_memory or self.keeps_state):
            return ""
        return _SHARED_GATE if self.code.workspace_peers else "gate"

    @property
    def waits(self) -> bool:
        """True if the file has a variant of the C interface's function that waits for concurrent calls."""
        return bool(self.code.entry and self.gate) and not (self.unit.workspace_io or self.code.external_workspace)


_ALIGNMENT = 64


def graph_entry(unit: Unit, code: GeneratedCode, places: ParameterOffsets) -> GraphEntry:
    """Return the entry of a module of the graph executor; the library has all parameters of its graph."""
    return GraphEntry(unit, code, host_module(unit, code), places=places.get(unit.module, {}))


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphEntry(AotEntry):
    """A module of the graph executor whose operators all are packed functions of the library, on the CPU."""

    places: Mapping[str, tuple[str, int]]  # of its parameters: symbol and offset
    kind: ClassVar[str] = "graph"

    @property
    def calls(self) -> list[tuple[str, list[tuple[int, str, Any]]]]:
        """The function of each operator; for each of its tensors, the number of its storage, dtype and elements."""
        numbers = {storage: number for number, storage in enumerate(self._memory[0])}
        found = []
        for call in self.unit.program.calls:
            rows = []
            for value, buffer in zip((*call.inputs, *call.constants, call.output), call.kernel.params, strict=True):
                dtype = c_dtype(dtypes.element(buffer.holds or buffer.dtype))
                rows.append((numbers[self._storages[value.root]], dtype, buffer.size))
            found.append((self.code.function_names[call.kernel.name], rows))
        return found

    @property
    def states(self) -> list[tuple[str, str, Any]]:
        """The address of each state, that of its first value, and its size in bytes."""
        # a graph's parameters begin with the first values of states
        pairs = zip(self.unit.program.states, self._parameters, strict=False)
        return [
            (self.addresses[self._storages[state.before]], self._stored(name), state.before.nbytes)
            for state, name in pairs
        ]

    @property
    def symbols(self) -> list[str]:
        """The symbols of the library's parameters."""
        return sorted({symbol for symbol, _ in self.places.values()})

    @property
    def addresses(self) -> Mapping[Storage, str]:
        """The address of each storage."""
        return self._memory[0]

    @property
    def work_bytes(self) -> int:
        """The bytes of storages that are neither arguments nor parameters."""
        return self._memory[1]

    @cached_property
    def _memory(self) -> tuple[dict[Storage, str], int]:
        """The address of each storage, and the bytes of those that are neither arguments nor parameters."""
        program, found = self.unit.program, dict[Storage, str]()
        for number, value in enumerate((*program.inputs, *program.outputs)):
            found[self._storages[value.root]] = f"data[{number}]"
        constants = list(self._parameters.items())[len(program.states) :]
        found |= {self._storages[value]: self._stored(name) for name, value in constants}
        end = 0
        for storage in self._storages.values():
            if storage not in found:
                found[storage] = f"memory() + {end}"
                end += -(-bounds(storage.nbytes)[1] // _ALIGNMENT) * _ALIGNMENT
        return found, end

    def _stored(self, name: str) -> str:
        """Return the address of the elements of a parameter."""
        symbol, offset = self.places[name]
        return f"(void *)(uintptr_t)({symbol} + {offset})"

    @property
    def _parameters(self) -> Mapping[str, Value]:
        """The parameters of the graph: the first values of states, then constants."""
        if self.code.graph is None:
            raise InternalError(f"'{self.unit.module}' has no graph")
        return self.code.graph.params

    @property
    def _storages(self) -> Mapping[Value, Storage]:
        """The storage of each value that owns its elements."""
        if self.code.plan is None:
            raise InternalError(f"'{self.unit.module}' has no storages")
        return self.code.plan.values


def dynamic_entry(unit: Unit, code: GeneratedCode) -> DynamicEntry:
    """Return the entry of a dynamic model whose inputs and outputs are tensors, on the CPU."""
    if unit.executable is None:
        raise InternalError(f"'{unit.module}' is not a dynamic model")
    inputs, outputs = (
        tuple(HostTensor(value.name, "", value.extents, value.dtype) for value in values)
        for values in (unit.executable.inputs, unit.executable.outputs)
    )
    return DynamicEntry(unit, code, HostModule(unit.module, inputs, outputs), executable=unit.executable)


@dataclass(frozen=True, eq=False, kw_only=True)
class DynamicEntry(AotEntry):
    """A dynamic model; its main function takes structs of tensors."""

    executable: Executable
    kind: ClassVar[str] = "dynamic"

    @property
    def has_static_memory(self) -> bool:
        """True if runs use static memory of the library."""
        return False

    @property
    def own_headers(self) -> tuple[str, ...]:
        """The headers that the file includes beside the runtime's."""
        return (*super().own_headers, "mlfc_dynamic.h")

    @property
    def state_bytes(self) -> int:
        """The size of all states."""
        return state_offsets(self.executable)[-1]

    @property
    def functions(self) -> dict[str, str]:
        """The module's functions by their purpose; NULL for none that releases outputs."""
        name = self.module.name
        release = "NULL" if self.executable.is_bounded else release_symbol(name)
        return {"run": run_symbol(name), "reset": reset_symbol(name), "release": release}

    @property
    def dtypes(self) -> list[int]:
        """The numbers of the tensors' dtypes."""
        return [NUMBERED_DTYPES[tensor.dtype] for tensor in self.tensors]
