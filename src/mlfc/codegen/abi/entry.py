"""Descriptions of modules from which the C of their functions on tensor addresses is rendered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from mlfc.codegen.c_interface import tensors
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.host.tvm import c_dtype
from mlfc.codegen.unit import SHARED_MODULE, Unit
from mlfc.errors import OptionError
from mlfc.support import dtypes
from mlfc.support.c_names import names_in_tables

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
