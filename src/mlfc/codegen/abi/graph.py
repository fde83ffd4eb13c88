"""Models of the graph executor as functions of libraries: calls of their packed operators, in order.

Constants are read where the library stores the parameters of its graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from mlfc.codegen.abi.entry import AotEntry, host_module
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.host.tvm import c_dtype
from mlfc.codegen.unit import Unit
from mlfc.errors import InternalError
from mlfc.memory import Storage
from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.support.params import ParameterOffsets
from mlfc.tir.program import Value

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
