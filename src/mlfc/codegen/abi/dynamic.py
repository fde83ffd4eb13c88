"""Dynamic models as functions of libraries, which return fresh outputs in the shapes of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlfc.codegen.abi.entry import AotEntry, HostModule, HostTensor
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.unit import Unit
from mlfc.codegen.writer import Writer
from mlfc.errors import InternalError
from mlfc.support.executable import (
    ALIGNMENT,
    NUMBERED_DTYPES,
    Executable,
    release_symbol,
    reset_symbol,
    run_symbol,
    state_offsets,
)


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
    run_name: ClassVar[str] = "NULL"

    @property
    def has_static_memory(self) -> bool:
        """True if runs use static memory of the library."""
        return False

    @property
    def own_headers(self) -> tuple[str, ...]:
        """The headers that the file includes beside the runtime's."""
        return (*super().own_headers, "mlfc_dynamic.h")

    def write_run(self, writer: Writer) -> None:
        """Write the memory of states."""
        if self.keeps_state:
            writer.line(f"static uint8_t states[{state_offsets(self.executable)[-1] + ALIGNMENT}];")
            writer.line("static int32_t states_are_set;")
            with writer.block("static uint8_t *state(void)"):
                writer.line(f"return states + ({ALIGNMENT} - (uintptr_t)states % {ALIGNMENT}) % {ALIGNMENT};")
            writer.line()
            with writer.block("static int32_t reset(void *const *data)"):
                writer.lines(["(void)data;", f"states_are_set = {reset_symbol(self.module.name)}(state()) == 0;"])
                writer.line("return states_are_set ? 0 : -1;")
            writer.line()

    def write_reset(self, writer: Writer) -> None:
        """Write nothing: `write_run` writes the function, which runs call."""

    def write_ffi_call(self, writer: Writer) -> None:
        """Write the body of the function of tvm-ffi."""
        name = self.module.name
        release = "NULL" if self.executable.is_bounded else release_symbol(name)
        dtypes = ", ".join(str(NUMBERED_DTYPES[tensor.dtype]) for tensor in self.tensors) or "0"
        states = "reset, state(), &states_are_set" if self.keeps_state else "NULL, NULL, NULL"
        writer.line(f"static const uint8_t dtypes[{self.slots}] = {{{dtypes}}};")
        writer.line("const struct mlfc_dynamic model = {")
        writer.line(f"  &function, dtypes, {run_symbol(name)}, {release}, {self.executable.work_bytes or 0}, {states},")
        writer.lines(["};", f"const DLTensor *tensors[{self.slots}];", f"void *data[{self.slots}];"])
        writer.lines([f"mlfc_vm_tensor values[{self.slots}];", "(void)handle;"])
        writer.line("return mlfc_ffi_dynamic(&model, args, num_args, result, tensors, data, values);")
