"""Tables of a module's tensors in C, and the function on tensor addresses that all conventions call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from mlfc.codegen.c_interface import tensors
from mlfc.codegen.emit import GeneratedCode, banner
from mlfc.codegen.host.tvm import dtype_code
from mlfc.codegen.unit import SHARED_MODULE, Unit
from mlfc.codegen.writer import Writer, c_string
from mlfc.errors import OptionError
from mlfc.support import dtypes
from mlfc.support.c_names import names_in_tables

_ALIGNMENT = 64
_LONGEST_NAME = 1000
_NO_GATE = "NULL"
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

    def write_run(self, writer: Writer, name: str = "run") -> None:
        """Write the function that passes tensor addresses to the C interface: inputs first, then outputs."""
        groups = (("inputs", self.inputs, 0), ("outputs", self.outputs, len(self.inputs)))
        given = ["&pools"] if self.pools or self.state_bytes else []
        if self.state_bytes:
            size = self.state_bytes + _ALIGNMENT
            writer.lines(["/* states are of this library, not of a call */", f"static uint8_t {name}_state[{size}];"])
            writer.lines([f"static int32_t {name}_state_is_set;", ""])
        with writer.block(f"static int32_t {name}(void *const *data)"):
            writer.lines([f"struct {self.prefix}_{kind} {kind};" for kind, *_ in groups])
            if given:
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
            # where inputs and outputs are in the workspace, they are copied there and back
            copies: dict[str, list[str]] = {}
            for kind, group, first in groups:
                places = [(f"{kind}.{item.field}", f"data[{first + at}]", item.nbytes) for at, item in enumerate(group)]
                if self.workspace_io:
                    writer.line(f"{kind} = {self.prefix}_map_{kind}({', '.join(given)});")
                    ends = [(to, of, size) if kind == "inputs" else (of, to, size) for to, of, size in places]
                    copies[kind] = [f"memcpy({target}, {source}, {size});" for target, source, size in ends]
                else:
                    writer.lines(
                        [f"{place} = {address};" for place, address, _ in places] or [f"{kind}.unused = NULL;"]
                    )
            writer.lines(copies.get("inputs", []))
            structs = [] if self.workspace_io else ["&inputs", "&outputs"]
            writer.line(f"status = {self.prefix}_run({', '.join([*structs, *given])});")
            writer.lines(copies.get("outputs", []))
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

    def write_reset(self, writer: Writer, name: str, run: str = "run") -> None:
        """Write a function that resets the states that the function `run` continues from."""
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

    def write_tables(self, writer: Writer, start: str, title: str, struct: str, version: str) -> None:
        """Write TVM's tables `title` with the name prefix `start`; if it is empty, shapes are already defined."""
        # as in TVM's own tables: C names for inputs, numbers for outputs
        inputs = names_in_tables(tensor.name for tensor in self.inputs)
        outputs = [f"output{index}" for index in range(len(self.outputs))]
        first = 0
        for kind, group, names in (("inputs", self.inputs, inputs), ("outputs", self.outputs, outputs)):
            shapes = [f"{start}{kind}_shape_{at}" if start else f"shape_{first + at}" for at in range(len(group))]
            first += len(group)
            for tensor, shape in zip(group, shapes, strict=True) if start else ():
                writer.line(f"static const int64_t {shape}[] = {{{', '.join(map(str, tensor.shape)) or '0'}}};")
            with writer.block(f"static const {struct}TVMTensorInfo {start}{kind}_info[{max(1, len(group))}] =", "};"):
                for name, tensor, shape in zip(names, group, shapes, strict=True):
                    facts = f"{shape}, {len(tensor.shape)}, {c_dtype(tensor.dtype)}"
                    writer.line(f"{{{c_string(name, _LONGEST_NAME)}, {facts}}},")
                if not group:
                    writer.line("{NULL, NULL, 0, {0, 0, 0}},")
        with writer.block(f"static const {struct}TVMMetadata {title} =", "};"):
            counts = f"{start}inputs_info, {len(self.inputs)}, {start}outputs_info, {len(self.outputs)}"
            writer.line(f"{version}, {counts},")
            writer.line(f"NULL, 0, NULL, 0, {c_string(self.prefix, len(self.prefix))},")
        writer.line()


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

    def file_start(self) -> str:
        """Return the part of the file that both conventions use."""
        writer, module = Writer(), self.module
        writer.lines(banner(str(self.unit.target)).splitlines())
        writer.lines(["#include <stddef.h>", "#include <stdint.h>", "#include <string.h>"])
        writer.lines(["#include <tvm/runtime/c_backend_api.h>", "#include <tvm/runtime/metadata_types.h>"])
        headers = ("mlfc_entry.h", "mlfc_ffi.h", *self.own_headers)
        writer.lines([f'#include "{header}"' for header in headers])
        writer.line()
        for index, tensor in enumerate(self.tensors):
            extents = ", ".join(map(str, tensor.dimensions)) or "0"
            writer.line(f"static const int64_t shape_{index}[] = {{{extents}}};")
        with writer.block(f"static const struct mlfc_parameter parameters[{self.slots}] =", "};"):
            for index, tensor in enumerate(self.tensors):
                facts = f"{len(tensor.shape)}, {c_dtype(tensor.dtype)}, {tensor.nbytes}"
                writer.line(f"{{{c_string(tensor.name)}, shape_{index}, {facts}}},")
            if not self.tensors:
                writer.line("{NULL, NULL, 0, {0, 0, 0}, 0},")
        writer.line()
        self.write_run(writer)
        gate = self._gate(writer)
        if self.code.entry and gate != _NO_GATE and not self.unit.workspace_io and not self.code.external_workspace:
            # the variant of the C interface's function that waits for concurrent calls of the functions in this file
            structs = ", ".join(f"struct {module.prefix}_{kind} *{kind}" for kind in ("inputs", "outputs"))
            with writer.block(f"TVM_DLL int32_t {self.code.entry}_in_turn({structs})"):
                writer.lines(["int32_t status;", f"mlfc_gate_enter({gate});"])
                writer.line(f"status = {self.code.entry}(inputs, outputs);")
                writer.lines([f"mlfc_gate_leave({gate});", "return status;"])
            writer.line()
        writer.line("static const struct mlfc_function function = {")
        counts = f"{len(module.inputs)}, {len(module.outputs)}"
        writer.line(f"  {c_string(module.name)}, parameters, {counts}, {self.run_name}, {gate},")
        writer.line("};")
        if self.keeps_state:
            self.write_reset(writer)
            writer.line("static const struct mlfc_function reset_function = {")
            writer.line(f"  {c_string(f'{module.name}_state_reset')}, parameters, 0, 0, reset, {gate},")
            writer.line("};")
        return writer.text()

    run_name: ClassVar[str] = "run"
    """The C function of the addresses of all tensors."""

    @property
    def has_static_memory(self) -> bool:
        """True if runs use static memory of the library."""
        return not self.code.external_workspace

    @property
    def own_headers(self) -> tuple[str, ...]:
        """The headers that the file includes beside the runtime's."""
        return (self.code.header_name,) if self.code.header_name else ()

    def write_run(self, writer: Writer) -> None:
        """Write the function that runs the module."""
        self.module.write_run(writer)

    def write_reset(self, writer: Writer) -> None:
        """Write the function ``reset``, which resets the states."""
        self.module.write_reset(writer, "reset")

    def write_ffi_call(self, writer: Writer) -> None:
        """Write the body of the function of tvm-ffi."""
        writer.lines([f"const DLTensor *tensors[{self.slots}];", f"void *data[{self.slots}];", "(void)handle;"])
        writer.line("return mlfc_ffi_entry(&function, args, num_args, result, tensors, data);")

    @property
    def keeps_state(self) -> bool:
        """True if the module keeps tensors between runs, so it has a function that resets them."""
        return bool(self.unit.program.states)

    def _gate(self, writer: Writer) -> str:
        """Write the gate that serializes calls; return its address."""
        if not (self.has_static_memory or self.keeps_state):
            return _NO_GATE
        if self.code.workspace_peers:
            writer.line(f"{'' if self.defines_gate else 'extern '}struct mlfc_gate {_SHARED_GATE};")
            return f"&{_SHARED_GATE}"
        writer.line("static struct mlfc_gate gate; /* the workspace is static: one run at a time */")
        return "&gate"


def c_dtype(dtype: str) -> str:
    """Return the initializer of a ``DLDataType``."""
    if dtype == "bool":  # as TVM writes it; argument checks also accept the form of newer DLPack versions
        return "{kDLUInt, 1, 1}"
    return f"{{{dtype_code(dtype).text}, {dtypes.bits(dtype)}, 1}}"
