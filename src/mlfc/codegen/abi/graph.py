"""Models of the graph executor as functions of libraries: calls of their packed operators, in order.

Constants are read where the library stores the parameters of its graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlfc.codegen.abi.entry import AotEntry, c_dtype, host_module
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.unit import Unit
from mlfc.codegen.writer import Writer
from mlfc.errors import InternalError
from mlfc.memory import Storage
from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.support.params import ParameterOffsets
from mlfc.tir.program import KernelCall, Value

_ALIGNMENT = 64


def graph_entry(unit: Unit, code: GeneratedCode, places: ParameterOffsets) -> GraphEntry:
    """Return the entry of a module of the graph executor; the library has all parameters of its graph."""
    return GraphEntry(unit, code, host_module(unit, code), places=places.get(unit.module, {}))


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphEntry(AotEntry):
    """A module of the graph executor whose operators all are packed functions of the library, on the CPU."""

    places: Mapping[str, tuple[str, int]]  # of its parameters: symbol and offset

    def write_run(self, writer: Writer) -> None:
        """Write the function that calls all operators."""
        calls, (addresses, nbytes) = self.unit.program.calls, self._memory()
        numbers = {storage: number for number, storage in enumerate(addresses)}
        for index, call in enumerate(calls):
            self._write_operands(writer, index, call, numbers)
        with writer.block(f"static const struct mlfc_call calls[{max(1, len(calls))}] =", "};"):
            for index, call in enumerate(calls):
                name, count = self.code.function_names[call.kernel.name], len(call.kernel.params)
                writer.line(f"{{{name}, operands_{index}, {count}}},")
            if not calls:
                writer.line("{NULL, NULL, 0},")
        writer.line()
        symbols = sorted({symbol for symbol, _ in self.places.values()})
        writer.lines([f"extern const unsigned char {symbol}[];" for symbol in symbols])
        writer.line(f"static uint8_t workspace[{nbytes + _ALIGNMENT}];")
        with writer.block("static uint8_t *memory(void)"):
            writer.line(f"return workspace + ({_ALIGNMENT} - (uintptr_t)workspace % {_ALIGNMENT}) % {_ALIGNMENT};")
        if self.keeps_state:
            self._write_states(writer, addresses)
        most = max((len(call.kernel.params) for call in calls), default=1)
        with writer.block("static int32_t run(void *const *data)"):
            writer.lines([f"void *storages[{max(1, len(addresses))}];", f"DLTensor tensors[{most}];"])
            writer.lines([f"TVMValue values[{most}];", f"int type_codes[{most}];", "(void)memory;", "(void)data;"])
            if self.keeps_state:
                with writer.block("if (!states_are_set)"):
                    writer.line("(void)reset(data);")
            writer.lines([f"storages[{number}] = {place};" for number, place in enumerate(addresses.values())])
            writer.line(f"return mlfc_call_operators(calls, {len(calls)}, storages, tensors, values, type_codes);")
        writer.line()

    def write_reset(self, writer: Writer) -> None:
        """Write nothing: `write_run` writes the function, which a run calls."""

    def _write_operands(self, writer: Writer, index: int, call: KernelCall, numbers: Mapping[Storage, int]) -> None:
        with writer.block(f"static const struct mlfc_operand operands_{index}[] =", "};"):
            values = (*call.inputs, *call.constants, call.output)
            for value, buffer in zip(values, call.kernel.params, strict=True):
                number = numbers[self._storages[value.root]]
                writer.line(f"{{{number}, {c_dtype(dtypes.element(buffer.holds or buffer.dtype))}, {buffer.size}}},")

    def _write_states(self, writer: Writer, addresses: Mapping[Storage, str]) -> None:
        writer.line("static int32_t states_are_set;")
        with writer.block("static int32_t reset(void *const *data)"):
            writer.line("(void)data;")
            # a graph's parameters begin with the first values of states
            for state, name in zip(self.unit.program.states, self._parameters, strict=False):
                place = addresses[self._storages[state.before]]
                writer.line(f"memcpy({place}, {self._stored(name)}, {state.before.nbytes});")
            writer.lines(["states_are_set = 1;", "return 0;"])

    def _memory(self) -> tuple[dict[Storage, str], int]:
        """Return the address of each storage, and the bytes of those that are neither arguments nor parameters."""
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
