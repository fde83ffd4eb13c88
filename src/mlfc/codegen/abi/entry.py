"""A module's tensors as tables of C, and the function on their addresses that every convention runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from mlfc.codegen.c_interface import LICENCE, InterfaceTensor, tensors
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.host.tvm import dtype_code
from mlfc.codegen.unit import SHARED_MODULE, Unit
from mlfc.codegen.writer import Writer, c_string, comment_text
from mlfc.errors import OptionError
from mlfc.support import dtypes

_ALIGNMENT = 64


_NO_GATE = "NULL"
_SHARED_GATE = f"tvmgen_{SHARED_MODULE}_gate"


def require_no_loaded(pools: Iterable[str], module: str) -> None:
    """Raise OptionError if there are memories of constants that the C interface's caller must load."""
    names = ", ".join(pools)
    if names:
        raise OptionError(
            f"functions on tensors have no argument for constants that the caller loads: {names}",
            place=module,
            next_step="Compile it without --load-constants",
        )


@dataclass(frozen=True)
class Slot:
    """A tensor: its field in the C interface's struct, and its bytes."""

    field: str
    nbytes: int


@dataclass(frozen=True)
class RunFunction:
    """A C function that gets the addresses of all tensors of a module, and passes them to its C interface."""

    prefix: str  # of the module's symbols
    entry: str  # the C interface's function
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    # name and bytes of the memories that the caller of the C interface passes in: the runtime's workspace
    pools: tuple[tuple[str, int], ...] = ()
    workspace_io: bool = False  # inputs and outputs are in the workspace, so they are copied there and back
    state_bytes: int = 0  # of the memory of states among those that the caller passes in

    def write(self, writer: Writer, name: str = "run") -> None:
        """Write the function: inputs first, then outputs."""
        groups = (("inputs", self.inputs), ("outputs", self.outputs))
        if self.state_bytes:
            size = self.state_bytes + _ALIGNMENT
            writer.lines(["/* states are of this library, not of a call */", f"static uint8_t {name}_state[{size}];"])
            writer.lines([f"static int32_t {name}_state_is_set;", ""])
        with writer.block(f"static int32_t {name}(void *const *data)"):
            writer.lines([f"struct {self.prefix}_{kind} {kind};" for kind, _ in groups])
            if self._is_given:
                writer.line(f"struct {self.prefix}_workspace_pools pools;")
            if self.pools:
                writer.lines(["void *memory;", "uint8_t *pool;"])
            writer.line("int32_t status;")
            if not (self.inputs or self.outputs):
                writer.line("(void)data;")
            if self.pools:
                self._take_pools(writer)
            if self.state_bytes:
                self._take_states(writer, f"{name}_state")
            self._call(writer, groups)
            if self.pools:
                with writer.block("if (TVMBackendFreeWorkspace(kDLCPU, 0, memory) != 0)"):
                    writer.line("return -1;")
            writer.line("return status;")
        writer.line()

    def _take_pools(self, writer: Writer) -> None:
        size = sum(-(-nbytes // _ALIGNMENT) * _ALIGNMENT for _, nbytes in self.pools) + _ALIGNMENT
        writer.line(f"memory = TVMBackendAllocWorkspace(kDLCPU, 0, {size}, kDLUInt, 8);")
        with writer.block("if (memory == NULL)"):
            writer.line("return -1;")
        writer.line(f"pool = (uint8_t *)memory + ({_ALIGNMENT} - (uintptr_t)memory % {_ALIGNMENT}) % {_ALIGNMENT};")
        offset = 0
        for name, nbytes in self.pools:
            writer.line(f"pools.{name} = pool + {offset};")
            offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    @property
    def _is_given(self) -> bool:
        """Whether the C interface takes memories of its caller."""
        return bool(self.pools) or self.state_bytes > 0

    def write_reset(self, writer: Writer, name: str, run: str = "run") -> None:
        """Write a function that resets the states with which the function `run` goes on."""
        writer.line()
        with writer.block(f"static int32_t {name}(void *const *data)"):
            if self.state_bytes:
                writer.line(f"struct {self.prefix}_workspace_pools pools;")
            writer.line("(void)data;")
            if self.state_bytes:
                self._take_states(writer, f"{run}_state")
            writer.line(f"return {self.prefix}_state_reset({'&pools' if self.state_bytes else ''});")
        writer.line()

    def _take_states(self, writer: Writer, array: str) -> None:
        writer.line(f"pools.state = {array} + ({_ALIGNMENT} - (uintptr_t){array} % {_ALIGNMENT}) % {_ALIGNMENT};")
        with writer.block(f"if (!{array}_is_set)"):
            writer.line(f"(void){self.prefix}_state_reset(&pools);")
            writer.line(f"{array}_is_set = 1;")

    def _call(self, writer: Writer, groups: Sequence[tuple[str, Sequence[Slot]]]) -> None:
        given = ["&pools"] if self._is_given else []
        first = {"inputs": 0, "outputs": len(self.inputs)}
        if self.workspace_io:
            for kind, _ in groups:
                writer.line(f"{kind} = {self.prefix}_map_{kind}({', '.join(given)});")
            writer.lines(_copies("inputs", self.inputs, 0))
            writer.line(f"status = {self.entry}({', '.join(given)});")
            writer.lines(_copies("outputs", self.outputs, len(self.inputs)))
            return
        for kind, group in groups:
            writer.lines([f"{kind}.{slot.field} = data[{first[kind] + index}];" for index, slot in enumerate(group)])
            if not group:
                writer.line(f"{kind}.unused = NULL;")
        writer.line(f"status = {self.entry}({', '.join(['&inputs', '&outputs', *given])});")


def _copies(kind: str, group: Sequence[Slot], first: int) -> list[str]:
    lines = []
    for index, slot in enumerate(group):
        ends = (f"{kind}.{slot.field}", f"data[{first + index}]")
        target, source = ends if kind == "inputs" else reversed(ends)
        lines.append(f"memcpy({target}, {source}, {slot.nbytes});")
    return lines


@dataclass(frozen=True, eq=False)
class AotEntry:
    """A module compiled ahead of time that a library has functions for."""

    unit: Unit
    code: GeneratedCode
    defines_gate: bool = False  # whether this file defines the gate of modules that share their workspace

    def __post_init__(self) -> None:
        require_no_loaded(self.code.loaded, self.unit.module)

    @property
    def prefix(self) -> str:
        """The start of every symbol of the module."""
        return f"tvmgen_{self.unit.module}"

    @cached_property
    def tensors(self) -> tuple[tuple[InterfaceTensor, ...], tuple[InterfaceTensor, ...]]:
        """Inputs and outputs, as the header names them."""
        return tensors(self.unit.program)

    @property
    def all_tensors(self) -> tuple[InterfaceTensor, ...]:
        """Inputs, then outputs."""
        return (*self.tensors[0], *self.tensors[1])

    @property
    def slots(self) -> int:
        """The elements of arrays with one for each tensor: C has no empty ones."""
        return max(1, len(self.all_tensors))

    def file_start(self) -> str:
        """Return the part of the file that both conventions use."""
        writer = Writer()
        writer.lines([f"/* target: {comment_text(self.unit.target_text)} */", f"/* {LICENCE} */"])
        writer.lines(["#include <stddef.h>", "#include <stdint.h>", "#include <string.h>"])
        writer.lines(["#include <tvm/runtime/c_backend_api.h>", "#include <tvm/runtime/metadata_types.h>"])
        writer.lines(['#include "mlfc_entry.h"', '#include "mlfc_ffi.h"', f'#include "{self.code.header_name}"'])
        writer.line()
        self._tables(writer)
        self._run.write(writer)
        gate = self._gate(writer)
        if gate != _NO_GATE and not self.unit.workspace_io and not self.code.external_workspace:
            self._run_in_turn(writer, gate)
        inputs, outputs = self.tensors
        writer.line("static const struct mlfc_function function = {")
        name = c_string(self.unit.module)
        writer.line(f"  {name}, parameters, {len(inputs)}, {len(outputs)}, run, {gate},")
        writer.line("};")
        if self.keeps_state:
            self._run.write_reset(writer, "reset")
            writer.line("static const struct mlfc_function reset_function = {")
            writer.line(f"  {c_string(f'{self.unit.module}_state_reset')}, parameters, 0, 0, reset, {gate},")
            writer.line("};")
        return writer.text()

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps tensors between runs, so that there is a function that resets them."""
        return bool(self.unit.program.states)

    def _tables(self, writer: Writer) -> None:
        for index, tensor in enumerate(self.all_tensors):
            extents = ", ".join(map(str, tensor.value.shape)) or "0"
            writer.line(f"static const int64_t shape_{index}[] = {{{extents}}};")
        with writer.block(f"static const struct mlfc_parameter parameters[{self.slots}] =", "};"):
            for index, tensor in enumerate(self.all_tensors):
                value = tensor.value
                facts = f"{len(value.shape)}, {c_dtype(value.dtype)}, {value.nbytes}"
                writer.line(f"{{{c_string(value.name)}, shape_{index}, {facts}}},")
            if not self.all_tensors:
                writer.line("{NULL, NULL, 0, {0, 0, 0}, 0},")
        writer.line()

    def _gate(self, writer: Writer) -> str:
        """Write the gate at which calls wait; return its address."""
        if self.code.external_workspace and not self.unit.program.states:
            return _NO_GATE
        if self.code.workspace_peers:
            if self.defines_gate:
                writer.line(f"struct mlfc_gate {_SHARED_GATE};")
            else:
                writer.line(f"extern struct mlfc_gate {_SHARED_GATE};")
            return f"&{_SHARED_GATE}"
        writer.line("static struct mlfc_gate gate; /* the workspace is static: one run at a time */")
        return "&gate"

    def _run_in_turn(self, writer: Writer, gate: str) -> None:
        """Write the C interface's function for callers that wait for those of the other functions."""
        inputs, outputs = (f"struct {self.prefix}_{kind} *{kind}" for kind in ("inputs", "outputs"))
        with writer.block(f"TVM_DLL int32_t {self.code.entry}_in_turn({inputs}, {outputs})"):
            writer.line("int32_t status;")
            writer.line(f"mlfc_gate_enter({gate});")
            writer.line(f"status = {self.code.entry}(inputs, outputs);")
            writer.line(f"mlfc_gate_leave({gate});")
            writer.line("return status;")
        writer.line()

    @property
    def _run(self) -> RunFunction:
        """The function that hands addresses on to the C interface."""
        assert self.code.entry is not None
        pools = self.unit.plan.pools if self.code.external_workspace else ()
        inputs, outputs = ([Slot(item.field, item.value.nbytes) for item in group] for group in self.tensors)
        return RunFunction(
            self.prefix,
            self.code.entry,
            tuple(inputs),
            tuple(outputs),
            tuple((pool.name, pool.nbytes) for pool in pools),
            self.unit.workspace_io,
            self.unit.plan.state_bytes if self.code.external_workspace else 0,
        )


def c_dtype(dtype: str) -> str:
    """Return the initializer of a ``DLDataType``."""
    if dtype == "bool":  # as TVM has it; who checks takes newer DLPack's form too
        return "{kDLUInt, 1, 1}"
    return f"{{{dtype_code(dtype).text}, {dtypes.bits(dtype)}, 1}}"
