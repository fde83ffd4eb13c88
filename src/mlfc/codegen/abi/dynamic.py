"""Dynamic models as functions of libraries, which return fresh outputs in the shapes of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlfc.codegen.abi.entry import AotEntry, HostModule, HostTensor
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.unit import Unit
from mlfc.errors import InternalError
from mlfc.support.executable import (
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
