"""What the templates say of a module, and the memories that a program hands to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from mlfc.archive.details import AOT, GRAPH, VM, module_info
from mlfc.archive.read.layout import CODE, ArchiveLayout
from mlfc.codegen import GeneratedCode
from mlfc.codegen.c_interface import STATE_FIELD, InterfaceTensor, field_names, tensors
from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.constants import LARGEST_MACRO, section
from mlfc.errors import OptionError
from mlfc.memory.plan import DEFAULT_POOL, POOL_ALIGNMENT, STATE_SECTION, pool_section
from mlfc.support import dtypes
from mlfc.support.dim_estimates import most
from mlfc.support.dims import Symbol, substituted, symbols_of
from mlfc.support.executable import bounding_option
from mlfc.support.module_info import ModuleInfo, ModuleInterface
from mlfc.tir.program import Value

if TYPE_CHECKING:
    from mlfc.factory import Factory

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Vector:
    """Inputs of a module by name, and the outputs that its code gives for them."""

    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True)
class DemoTensor:
    """An input or output."""

    name: str  # the model's own, of any characters
    field: str  # in the structs of the C interface
    shape: tuple[int | str, ...]
    dtype: str
    scale: float | None
    zero_point: int | None
    most: int | None = None  # elements, where extents are open and bounded

    @property
    def count(self) -> int:
        """Number of elements; of open extents the most."""
        return prod(extent for extent in self.shape if isinstance(extent, int)) if self.most is None else self.most

    @property
    def c_type(self) -> str:
        """C's type of an element."""
        return scalar_type(self.dtype)

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return dtypes.to_numpy(self.dtype).itemsize

    @property
    def kind(self) -> str:
        """What `tensor_check.h` calls the elements; those of narrow dtypes are their bits."""
        return f"TENSOR_{dtypes.stored(self.dtype).upper()}"

    @property
    def c_length(self) -> int:
        """Elements of an array for it: C has no arrays of no elements."""
        return max(1, self.count)


@dataclass(frozen=True)
class TemplateSubject:
    """A module."""

    name: str  # as in symbols and file names
    target: str
    details: ModuleInterface
    inputs: tuple[DemoTensor, ...]
    outputs: tuple[DemoTensor, ...]
    workspace_peers: tuple[str, ...]  # modules that work in the same memory
    graph_path: str  # in the archive, as the next
    params_path: str
    params: tuple[str, ...]  # the names in its parameter file; none of AOT modules
    generators: tuple[str, ...] = ()  # external generators that wrote C or objects of it
    modules: tuple[str, ...] = ()  # kinds of the runtime modules that run parts of it
    vectors: tuple[Vector, ...] = ()
    info: ModuleInfo | None = None  # of a module that was just compiled, what else is known of it
    # of the virtual machine: for each run of a demo without test vectors, the shapes of the inputs
    cases: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def is_aot(self) -> bool:
        """Whether it has the C interface of code that is compiled ahead of time."""
        return self.details.executor == AOT

    @property
    def is_graph(self) -> bool:
        """Whether it is for the graph executor."""
        return self.details.executor == GRAPH

    @property
    def is_vm(self) -> bool:
        """Whether it is for the virtual machine."""
        return self.details.executor == VM

    @property
    def unbounded_symbols(self) -> tuple[str, ...]:
        """The open extents without a bound."""
        symbols = self.details.vm.symbols if self.details.vm else ()
        return tuple(symbol.name for symbol in symbols if symbol.high is None)

    @property
    def bounding_option(self) -> str:
        """An option of `mlfc compile` that bounds an input."""
        return bounding_option(self.details.inputs, self.details.vm.symbols if self.details.vm else ())

    @property
    def device(self) -> str | None:
        """The kind of device that runs operators of it, if one does."""
        kinds = (call.device for call in self.info.operators) if self.info else ()
        return next((kind for kind in kinds if kind not in (None, "cpu")), None)

    @property
    def is_program(self) -> bool:
        """Whether the C and the C runtime alone run it: without a device, and without modules of another runtime."""
        is_bounded = self.details.vm is None or self.details.vm.work_bytes is not None
        return self.device is None and not self.modules and is_bounded

    @property
    def maps_tensors(self) -> bool:
        """Whether inputs and outputs lie in the workspace."""
        return self.details.workspace_io

    @property
    def pools(self) -> tuple[str, ...]:
        """The memories of the workspace."""
        default = (DEFAULT_POOL,) if self.details.memory.workspace_bytes else ()
        return tuple(pool.name for pool in self.details.pools) or default

    @property
    def passed_pools(self) -> tuple[str, ...]:
        """The memories of the workspace and of states that the caller passes in."""
        if not self.details.external_workspace:
            return ()
        return (*self.pools, STATE_FIELD) if self.keeps_state else self.pools

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps tensors from one run to the next."""
        return bool(self.details.states)

    def reset_call(self, pools: str) -> str:
        """Return the call that resets its states; `pools` is the address of the caller's memories."""
        return f"{self.prefix}_state_reset({pools if self.details.external_workspace else ''})"

    @property
    def loaded(self) -> Mapping[str, str]:
        """The memories that the caller loads with constants, and the files that hold these."""
        pools = self.details.constant_pools
        return {pool.name: f"{CODE}/{pool.file}" for pool in pools if pool.file}

    @property
    def caller_pools(self) -> tuple[str, ...]:
        """The memories that the caller passes in: of the workspace, and loaded with constants."""
        return (*self.passed_pools, *self.loaded)

    @property
    def reads_files(self) -> bool:
        """Whether running it takes files of the archive."""
        return self.is_graph or bool(self.loaded)

    def pool_size(self, pool: str) -> str:
        """Return the macro with the bytes of a memory that the caller passes in."""
        if pool == STATE_FIELD and pool in self.passed_pools:
            return f"{self.prefix.upper()}_STATE_SIZE"
        kind = "CONSTANT" if pool in self.loaded else "WORKSPACE"
        return f"{self.prefix.upper()}_{pool.upper()}_{kind}_POOL_SIZE"

    @property
    def prefix(self) -> str:
        """What its symbols start with."""
        return f"tvmgen_{self.name}"


def subject(
    factory: Factory, code: GeneratedCode, layout: ArchiveLayout, vectors: tuple[Vector, ...] = ()
) -> TemplateSubject:
    """Describe a compiled module, its code as linked with the archive's other modules."""
    details = module_info(factory, code)
    is_vm = factory.executor == VM
    inputs, outputs = tensors(factory.program, of_vm=is_vm)
    described = {item.name: item for item in (*details.inputs, *details.outputs)}

    def tensor(known: InterfaceTensor) -> DemoTensor:
        item = described[known.value.name]
        elements = None if item.is_static else most(prod(known.value.shape))
        return DemoTensor(item.name, known.field, item.shape, item.dtype, item.scale, item.zero_point, elements)

    # the shapes of inputs with all open extents the least, and with all the largest, where that differs
    symbols = symbols_of(extent for value in factory.program.inputs for extent in value.shape)
    extremes = [{item: item.low for item in symbols}, {item: item.high for item in symbols}]
    return TemplateSubject(
        factory.module_name,
        str(factory.target),
        details,
        tuple(map(tensor, inputs)),
        tuple(map(tensor, outputs)),
        code.workspace_peers,
        (layout.graph or "").format(module=factory.module_name),
        (layout.params or "").format(module=factory.module_name),
        tuple(code.graph.params) if code.graph else (),
        tuple(dict.fromkeys(part.generator for part in code.external if not part.is_module)),
        tuple(dict.fromkeys(part.generator for part in code.external if part.is_module)),
        vectors,
        details,
        tuple(dict.fromkeys(shapes_at(factory.program.inputs, sizes) for sizes in extremes if is_vm)),
    )


def shapes_at(inputs: Sequence[Value], sizes: Mapping[Symbol, int]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of inputs where their open extents have these values."""
    return tuple(tuple(int(substituted(extent, sizes)) for extent in value.shape) for value in inputs)


def described_subject(name: str, details: ModuleInterface) -> TemplateSubject:
    """Describe a module of an archive for the AOT executor or the virtual machine as far as calling it takes."""
    described = (*details.inputs, *details.outputs)
    tensors = tuple(
        DemoTensor(item.name, field, item.shape, item.dtype, item.scale, item.zero_point)
        for item, field in zip(described, field_names(details), strict=True)
    )
    count = len(details.inputs)
    return TemplateSubject(name, "", details, tensors[:count], tensors[count:], (), "", "", ())


@dataclass(frozen=True)
class GivenPool:
    """An array that a program hands to a module."""

    name: str  # of the memory
    array: str
    size: str  # the macro with its bytes
    section: str
    data: str | None  # the macro with what it holds; None for memory to work in

    @property
    def definition(self) -> list[str]:
        """The lines that define it; what an attribute says of the section only ELF has a place for."""
        kind, value = ("const uint8_t", f" = {{{self.data}}}") if self.data else ("uint8_t", "")
        return [
            "#if defined(__ELF__)",
            f'__attribute__((section("{self.section}"), aligned({POOL_ALIGNMENT})))',
            "#endif",
            f"static {kind} {self.array}[{self.size}]{value};",
        ]


def given_pools(subject: TemplateSubject) -> tuple[GivenPool, ...]:
    """Return the memories of a module in the order of their struct; OptionError for constants too large for a macro."""
    pools = [
        GivenPool(
            name,
            "workspace" if name == DEFAULT_POOL else f"workspace_{name}",
            subject.pool_size(name),
            STATE_SECTION if name == STATE_FIELD and subject.keeps_state else pool_section(name),
            None,
        )
        for name in subject.passed_pools
    ]
    sizes = {pool.name: pool.nbytes for pool in subject.details.constant_pools}
    for name, path in subject.loaded.items():
        if sizes[name] > LARGEST_MACRO:
            raise OptionError(
                f"the {sizes[name]:,} bytes of constants '{name}' are more than the {LARGEST_MACRO:,} that firmware "
                "can hold as an array",
                place=path,
                next_step="Compile with --constants instead of --load-constants, or load the file yourself",
            )
        size = subject.pool_size(name)
        data = f"{size.removesuffix('_SIZE')}_DATA"
        pools.append(GivenPool(name, f"constants_{name}", size, section(name), data))
    return tuple(pools)
