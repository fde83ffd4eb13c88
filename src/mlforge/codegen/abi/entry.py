"""A module's tensors as tables of C, and the one function that both conventions run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mlforge.codegen.c_interface import LICENCE, Tensor, tensors
from mlforge.codegen.emit import GeneratedCode
from mlforge.codegen.unit import SHARED_MODULE, Unit
from mlforge.codegen.writer import Writer, c_string, comment_text
from mlforge.errors import OptionError
from mlforge.support import dtypes

_ALIGNMENT = 64
_NO_GATE = "NULL"
_SHARED_GATE = f"tvmgen_{SHARED_MODULE}_gate"
_CODES = {"int": "kDLInt", "uint": "kDLUInt", "float": "kDLFloat", "bfloat": "kDLBfloat"}


@dataclass(frozen=True, eq=False)
class AotEntry:
    """What is known of a module compiled ahead of time that a library has functions for.

    Attributes
    ----------
    unit : Unit
    code : GeneratedCode
        Of the unit.
    defines_gate : bool
        Whether this file defines what modules that share their workspace wait at.
    """

    unit: Unit
    code: GeneratedCode
    defines_gate: bool = False

    def __post_init__(self) -> None:
        if self.code.loaded:
            names = ", ".join(self.code.loaded)
            raise OptionError(
                f"functions on tensors have no argument for constants that the caller loads: {names}",
                place=self.unit.module,
                next_step="Compile it for a library without memories for constants",
            )

    @property
    def prefix(self) -> str:
        """What every symbol of the module starts with."""
        return f"tvmgen_{self.unit.module}"

    @cached_property
    def tensors(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs and outputs, as the header names them."""
        return tensors(self.unit.program.inputs, self.unit.program.outputs)

    @property
    def all_tensors(self) -> tuple[Tensor, ...]:
        """Inputs, then outputs."""
        return (*self.tensors[0], *self.tensors[1])

    @property
    def slots(self) -> int:
        """The elements of arrays with one for each tensor: C has no empty ones."""
        return max(1, len(self.all_tensors))

    def file_start(self) -> str:
        """Return the file up to what each convention adds."""
        writer = Writer()
        writer.lines([f"/* target: {comment_text(self.unit.target_text)} */", f"/* {LICENCE} */"])
        writer.lines(["#include <stddef.h>", "#include <stdint.h>", "#include <string.h>"])
        writer.lines(["#include <tvm/runtime/c_backend_api.h>", "#include <tvm/runtime/metadata_types.h>"])
        writer.lines(['#include "mlforge_entry.h"', '#include "mlforge_ffi.h"', f'#include "{self.code.header_name}"'])
        writer.line()
        self._tables(writer)
        self._run(writer)
        gate = self._gate(writer)
        if gate != _NO_GATE and not self.unit.workspace_io:
            self._run_in_turn(writer, gate)
        inputs, outputs = self.tensors
        writer.line("static const struct mlforge_function function = {")
        name = c_string(self.unit.module)
        writer.line(f"  {name}, parameters, {len(inputs)}, {len(outputs)}, run, {gate},")
        writer.line("};")
        return writer.text()

    def _tables(self, writer: Writer) -> None:
        for index, tensor in enumerate(self.all_tensors):
            extents = ", ".join(map(str, tensor.value.shape)) or "0"
            writer.line(f"static const int64_t shape_{index}[] = {{{extents}}};")
        with writer.block(f"static const struct mlforge_parameter parameters[{self.slots}] =", "};"):
            for index, tensor in enumerate(self.all_tensors):
                value = tensor.value
                facts = f"{len(value.shape)}, {c_dtype(value.dtype)}, {value.nbytes}"
                writer.line(f"{{{c_string(value.name)}, shape_{index}, {facts}}},")
            if not self.all_tensors:
                writer.line("{NULL, NULL, 0, {0, 0, 0}, 0},")
        writer.line()

    def _gate(self, writer: Writer) -> str:
        """Write what calls wait at; return its address."""
        if self.code.external_workspace:
            return _NO_GATE
        if self.code.workspace_peers:
            if self.defines_gate:
                writer.line(f"struct mlforge_gate {_SHARED_GATE};")
            else:
                writer.line(f"extern struct mlforge_gate {_SHARED_GATE};")
            return f"&{_SHARED_GATE}"
        writer.line("static struct mlforge_gate gate; /* the workspace is static: one run at a time */")
        return "&gate"

    def _run_in_turn(self, writer: Writer, gate: str) -> None:
        """Write the C interface's function for callers that wait for those of the other functions."""
        inputs, outputs = (f"struct {self.prefix}_{kind} *{kind}" for kind in ("inputs", "outputs"))
        with writer.block(f"TVM_DLL int32_t {self.code.entry}_in_turn({inputs}, {outputs})"):
            writer.line("int32_t status;")
            writer.line(f"mlforge_gate_enter({gate});")
            writer.line(f"status = {self.code.entry}(inputs, outputs);")
            writer.line(f"mlforge_gate_leave({gate});")
            writer.line("return status;")
        writer.line()

    def _run(self, writer: Writer) -> None:
        """Write the function that hands addresses on to the C interface."""
        groups = list(zip(("inputs", "outputs"), self.tensors, strict=True))
        pools = self.unit.plan.pools if self.code.external_workspace else ()
        with writer.block("static int32_t run(void *const *data)"):
            writer.lines([f"struct {self.prefix}_{kind} {kind};" for kind, _ in groups])
            if pools:
                writer.lines([f"struct {self.prefix}_workspace_pools pools;", "void *memory;", "uint8_t *pool;"])
            writer.line("int32_t status;")
            if not self.all_tensors:
                writer.line("(void)data;")
            if pools:
                self._take_pools(writer)
            self._call(writer, groups, has_pools=bool(pools))
            if pools:
                with writer.block("if (TVMBackendFreeWorkspace(kDLCPU, 0, memory) != 0)"):
                    writer.line("return -1;")
            writer.line("return status;")
        writer.line()

    def _take_pools(self, writer: Writer) -> None:
        size = sum(-(-pool.nbytes // _ALIGNMENT) * _ALIGNMENT for pool in self.unit.plan.pools) + _ALIGNMENT
        writer.line(f"memory = TVMBackendAllocWorkspace(kDLCPU, 0, {size}, kDLUInt, 8);")
        with writer.block("if (memory == NULL)"):
            writer.line("return -1;")
        writer.line(f"pool = (uint8_t *)memory + ({_ALIGNMENT} - (uintptr_t)memory % {_ALIGNMENT}) % {_ALIGNMENT};")
        offset = 0
        for pool in self.unit.plan.pools:
            writer.line(f"pools.{pool.name} = pool + {offset};")
            offset += -(-pool.nbytes // _ALIGNMENT) * _ALIGNMENT

    def _call(self, writer: Writer, groups: Sequence[tuple[str, Sequence[Tensor]]], *, has_pools: bool) -> None:
        given = ["&pools"] if has_pools else []
        first = {"inputs": 0, "outputs": len(self.tensors[0])}
        if self.unit.workspace_io:
            for kind, _ in groups:
                writer.line(f"{kind} = {self.prefix}_map_{kind}({', '.join(given)});")
            writer.lines(_copies("inputs", self.tensors[0], 0))
            writer.line(f"status = {self.code.entry}({', '.join(given)});")
            writer.lines(_copies("outputs", self.tensors[1], len(self.tensors[0])))
            return
        for kind, group in groups:
            writer.lines([f"{kind}.{item.field} = data[{first[kind] + index}];" for index, item in enumerate(group)])
            if not group:
                writer.line(f"{kind}.unused = NULL;")
        writer.line(f"status = {self.code.entry}({', '.join(['&inputs', '&outputs', *given])});")


def c_dtype(dtype: str) -> str:
    """Return the initializer of a ``DLDataType``."""
    if dtype == "bool":  # as TVM has it; who checks takes newer DLPack's form too
        return "{kDLUInt, 1, 1}"
    kind = dtype.rstrip("0123456789")
    return f"{{{_CODES[kind]}, {dtypes.bits(dtype)}, 1}}"


def _copies(kind: str, group: Sequence[Tensor], first: int) -> list[str]:
    lines = []
    for index, tensor in enumerate(group):
        ends = (f"{kind}.{tensor.field}", f"data[{first + index}]")
        target, source = ends if kind == "inputs" else reversed(ends)
        lines.append(f"memcpy({target}, {source}, {tensor.value.nbytes});")
    return lines
