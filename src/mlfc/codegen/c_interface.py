"""The headers that users of a model include: ``tvmgen_<module>.h`` in microTVM's format, and that of dynamic models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from mlfc.codegen.constants import LoadedPool
from mlfc.codegen.templates import render
from mlfc.codegen.writer import comment_text
from mlfc.errors import OptionError
from mlfc.memory.plan import DEFAULT_POOL, PoolSpan
from mlfc.relay.ir import Quantization
from mlfc.support.c_names import unique
from mlfc.support.dim_estimates import most
from mlfc.support.executable import DTYPES, Executable, release_symbol, reset_symbol, run_symbol, state_offsets
from mlfc.support.module_info import ModuleInterface
from mlfc.tir.program import Program, Value

# reserved: macros, and fields of test vectors, with these names have other meanings
_RESERVED = ("workspace", f"{DEFAULT_POOL}_workspace_pool")
_VM_RESERVED = ("vm_work", "vm_state", "extents")
STATE_FIELD = "state"  # the field of the state memory among those that the caller passes in


@dataclass(frozen=True, eq=False)
class InterfaceTensor:
    """An input or output of a module: the program's value and its field in the struct."""

    field: str
    value: Value


@dataclass(frozen=True, eq=False)
class InterfaceState:
    """A state of a module: the program's value, and its offset in the state memory."""

    value: Value
    offset: int
    initial: npt.NDArray[np.generic] | None  # None for zeros

    @property
    def image(self) -> npt.NDArray[np.uint8]:
        """The initial bytes."""
        if self.initial is None:
            return np.zeros(self.value.nbytes, np.uint8)
        return np.ascontiguousarray(self.initial).reshape(-1).view(np.uint8)


@dataclass(frozen=True, eq=False)
class BaseInterface:
    """The common part of the C interfaces of static and dynamic modules."""

    module: str  # lower-case name
    inputs: tuple[InterfaceTensor, ...]
    outputs: tuple[InterfaceTensor, ...]

    @property
    def prefix(self) -> str:
        """The prefix of every symbol of the module."""
        return f"tvmgen_{self.module}"

    @property
    def macro_prefix(self) -> str:
        """The prefix of every macro of the module."""
        return self.prefix.upper()

    @property
    def header_name(self) -> str:
        """The header's file name."""
        return f"{self.prefix}.h"


@dataclass(frozen=True, eq=False)
class Interface(BaseInterface):
    """The C interface of a module that is compiled ahead of time."""

    workspace_bytes: int
    external_workspace: bool  # the caller passes the workspace in; False for modules without a workspace
    pools: tuple[PoolSpan, ...]  # the parts of the workspace
    quantization: Mapping[str, Quantization]  # by tensor name
    workspace_peers: tuple[str, ...] = ()  # modules that share this workspace
    shared_constants_bytes: int = 0  # size of the constants in files that several modules share
    workspace_io: bool = False  # inputs and outputs are in the workspace
    constant_pools: tuple[LoadedPool, ...] = ()  # constants that the caller loads
    states: tuple[InterfaceState, ...] = ()
    state_bytes: int = 0  # size of all states, which are in one memory that persists between runs
    notes: Mapping[Value, str] = field(default_factory=dict)  # of outputs, by the value that owns the memory

    @property
    def has_state_flag(self) -> bool:
        """True if a flag beside the static state array records its initialization: initial states may be nonzero."""
        return not self.external_workspace and any(state.image.any() for state in self.states)

    def state_function(self, what: str) -> str:
        """Return the name of the function for states; `what` is reset, save or restore."""
        return f"{self.prefix}_state_{what}"

    @property
    def entry(self) -> str:
        """The function that runs the module."""
        return f"{self.prefix}_run"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The declarations of the entry's parameters."""
        params = [f"struct {self.prefix}_inputs *inputs", f"struct {self.prefix}_outputs *outputs"]
        return (*([] if self.workspace_io else params), *self.pool_parameters)

    @property
    def pool_parameters(self) -> tuple[str, ...]:
        """The declaration of the parameter with the caller's pools, if any."""
        return (f"struct {self.prefix}_workspace_pools *workspace_pools",) if self.caller_pools else ()

    @property
    def caller_pools(self) -> Mapping[str, str]:
        """The fields of the struct with the caller's pools, and their qualifiers."""
        workspace = {pool.name: "" for pool in self.pools} if self.external_workspace else {}
        if self.external_workspace and self.states:
            workspace[STATE_FIELD] = ""
        return {**workspace, **{pool.name: "const " for pool in self.constant_pools}}

    @property
    def mappers(self) -> tuple[str, str]:
        """The functions that return the addresses of inputs and outputs in the workspace."""
        return f"{self.prefix}_map_inputs", f"{self.prefix}_map_outputs"


def _field_names(names: Iterable[str], *, has_state: bool, of_vm: bool) -> list[str]:
    """Return distinct field names for inputs and outputs: macros use both in one namespace."""
    if of_vm:
        return unique(names, _VM_RESERVED)
    return unique(names, (*_RESERVED, STATE_FIELD) if has_state else _RESERVED)


def field_names(details: ModuleInterface) -> list[str]:
    """Return the field names of the inputs, then of the outputs, of a module in an archive."""
    names = (tensor.name for tensor in (*details.inputs, *details.outputs))
    return _field_names(names, has_state=bool(details.states), of_vm=bool(details.vm))


def tensors(
    program: Program, *, of_vm: bool = False
) -> tuple[tuple[InterfaceTensor, ...], tuple[InterfaceTensor, ...]]:
    """Return inputs and outputs of a program with field names derived from their names; `of_vm` for a dynamic model."""
    values = [*program.inputs, *program.outputs]
    names = _field_names((value.name for value in values), has_state=bool(program.states), of_vm=of_vm)
    named = tuple(InterfaceTensor(name, value) for name, value in zip(names, values, strict=True))
    return named[: len(program.inputs)], named[len(program.inputs) :]


def check_macros(interface: Interface) -> None:
    """Raise OptionError if the size macros of a pool and of a tensor have the same name."""
    named = {tensor.field.lower(): tensor.value.name for tensor in (*interface.inputs, *interface.outputs)}
    pools = [(pool.name, "workspace") for pool in interface.pools]
    pools += [(pool.name, "constant") for pool in interface.constant_pools]
    if interface.states and any(name == STATE_FIELD for name, _ in pools):
        raise OptionError(
            f"the memory name '{STATE_FIELD}' is reserved for the model's state",
            place="pool",
            next_step="Give this memory another name",
        )
    for name, kind in pools:
        tensor = named.get(f"{name}_{kind}_pool")
        if tensor is not None:
            raise OptionError(
                f"the macros for the sizes of '{name}' and of the tensor '{tensor[:80]}' have the same name",
                place="pool",
                next_step="Give this memory another name",
            )


def header(interface: Interface) -> str:
    """Return the header's text."""
    return render("interface.h", item=interface, described=partial(described, quantization=interface.quantization))


def described(value: Value, quantization: Mapping[str, Quantization]) -> str:
    """Return the description of a tensor for a comment: its name, shape, dtype and scale."""
    shape = " x ".join(map(str, value.shape)) or "scalar"
    text = f"{comment_text(value.name[:200])}: {shape} {value.dtype}"
    known = quantization.get(value.name)
    if known is not None:
        text += f", real = {known.scale!r} * (value - {known.zero_point})"
    return text


@dataclass(frozen=True, eq=False)
class VmInterface(BaseInterface):
    """The C interface of a dynamic module."""

    executable: Executable
    quantization: Mapping[str, Quantization]


def vm_header(interface: VmInterface) -> str:
    """Return the header's text."""
    module, executable = interface.module, interface.executable
    functions = {"run": run_symbol(module), "reset": reset_symbol(module), "release": release_symbol(module)}
    return render(
        "vm_interface.h", item=interface, described=partial(described, quantization=interface.quantization),
        dtypes=DTYPES, functions=functions, most=most, offsets=state_offsets(executable),
    )  # fmt: skip
