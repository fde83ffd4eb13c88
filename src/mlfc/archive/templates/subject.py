"""Template data of a module, and the memory pools that a program passes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy.typing as npt

from mlfc.archive.details import AOT, GRAPH, VM, module_info
from mlfc.archive.read.layout import CODE, ArchiveLayout
from mlfc.codegen import GeneratedCode
from mlfc.codegen.c_interface import STATE_FIELD, InterfaceTensor, field_names, tensors
from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.constants import LARGEST_MACRO, section
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.memory.plan import DEFAULT_POOL, POOL_ALIGNMENT, STATE_SECTION, pool_section
from mlfc.support import dtypes
from mlfc.support.dim_estimates import most
from mlfc.support.dims import Symbol, substituted, symbols_of
from mlfc.support.executable import bounding_option
from mlfc.support.module_info import ModuleInfo, ModuleInterface
from mlfc.tir.program import Value

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Vector:
    """Inputs of a module by name, and the outputs that its code computes from them."""

    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True)
class DemoTensor:
    """An input or output."""

    name: str  # the model's own, with any characters
    field: str  # name in the structs of the C interface
    shape: tuple[int | str, ...]
    dtype: str
    scale: float | None
    zero_point: int | None
    most: int | None = None  # maximum elements, if dimensions are dynamic and bounded

    @property
    def count(self) -> int:
        """Number of elements, the maximum for dynamic dimensions."""
        return prod(extent for extent in self.shape if isinstance(extent, int)) if self.most is None else self.most

    @property
    def c_type(self) -> str:
        """C type of an element."""
        return scalar_type(self.dtype)

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return dtypes.to_numpy(self.dtype).itemsize

    @property
    def kind(self) -> str:
        """Name of the element type in `tensor_check.h`; for narrow dtypes that of their bits."""
        return f"TENSOR_{dtypes.stored(self.dtype).upper()}"

    @property
    def c_length(self) -> int:
        """Length of its C array, which cannot be 0."""
        return max(1, self.count)


@dataclass(frozen=True)
class TemplateSubject:
    """A module."""

    name: str  # as in symbols and file names
    target: str
    details: ModuleInterface
    inputs: tuple[DemoTensor, ...]
    outputs: tuple[DemoTensor, ...]
    workspace_peers: tuple[str, ...]  # modules that share its workspace
    graph_path: str  # in the archive, as is the next
    params_path: str
    params: tuple[str, ...]  # names in its parameter file; empty for AOT modules
    generators: tuple[str, ...] = ()  # external generators that produced C or objects for it
    modules: tuple[str, ...] = ()  # kinds of the runtime modules that run parts of it
    vectors: tuple[Vector, ...] = ()
    info: ModuleInfo | None = None  # of a newly compiled module: further details
    # virtual machine only: the input shapes of each run of a demo without test vectors
    cases: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def is_aot(self) -> bool:
        """True if it has the C interface of ahead-of-time compiled code."""
        return self.details.executor == AOT

    @property
    def is_graph(self) -> bool:
        """True if it is for the graph executor."""
        return self.details.executor == GRAPH

    @property
    def is_vm(self) -> bool:
        """True if it is for the virtual machine."""
        return self.details.executor == VM

    @property
    def unbounded_symbols(self) -> tuple[str, ...]:
        """Dynamic dimensions without an upper bound."""
        symbols = self.details.vm.symbols if self.details.vm else ()
        return tuple(symbol.name for symbol in symbols if symbol.high is None)

    @property
    def bounding_option(self) -> str:
        """Option of `mlfc compile` that bounds an input."""
        return bounding_option(self.details.inputs, self.details.vm.symbols if self.details.vm else ())

    @property
    def device(self) -> str | None:
        """Kind of the device that runs operators of it, or None."""
        kinds = (call.device for call in self.info.operators) if self.info else ()
        return next((kind for kind in kinds if kind not in (None, "cpu")), None)

    @property
    def is_program(self) -> bool:
        """True if C and the C runtime suffice to run it: it uses neither devices nor modules of another runtime."""
        is_bounded = self.details.vm is None or self.details.vm.work_bytes is not None
        return self.device is None and not self.modules and is_bounded

    @property
    def maps_tensors(self) -> bool:
        """True if inputs and outputs are in the workspace."""
        return self.details.workspace_io

    @property
    def pools(self) -> tuple[str, ...]:
        """Memory pools of the workspace."""
        default = (DEFAULT_POOL,) if self.details.memory.workspace_bytes else ()
        return tuple(pool.name for pool in self.details.pools) or default

    @property
    def passed_pools(self) -> tuple[str, ...]:
        """Memory pools of the workspace and of states that the caller passes in."""
        if not self.details.external_workspace:
            return ()
        return (*self.pools, STATE_FIELD) if self.keeps_state else self.pools

    @property
    def keeps_state(self) -> bool:
        """True if it keeps tensors from one run to the next."""
        return bool(self.details.states)

    def reset_call(self, pools: str) -> str:
        """Return the call that resets its states; `pools` is the address of the caller's pools."""
        return f"{self.prefix}_state_reset({pools if self.details.external_workspace else ''})"

    @property
    def loaded(self) -> Mapping[str, str]:
        """Memory pools that the caller loads with constants, and the files with these."""
        pools = self.details.constant_pools
        return {pool.name: f"{CODE}/{pool.file}" for pool in pools if pool.file}

    @property
    def caller_pools(self) -> tuple[str, ...]:
        """Memory pools that the caller passes in: of the workspace, and loaded with constants."""
        return (*self.passed_pools, *self.loaded)

    @property
    def reads_files(self) -> bool:
        """True if running it requires files of the archive."""
        return self.is_graph or bool(self.loaded)

    def pool_size(self, pool: str) -> str:
        """Return the macro with the size in bytes of a pool that the caller passes in."""
        if pool == STATE_FIELD and pool in self.passed_pools:
            return f"{self.prefix.upper()}_STATE_SIZE"
        kind = "CONSTANT" if pool in self.loaded else "WORKSPACE"
        return f"{self.prefix.upper()}_{pool.upper()}_{kind}_POOL_SIZE"

    @property
    def prefix(self) -> str:
        """Prefix of its symbols."""
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

    # the input shapes with all dynamic dimensions at their minimum and, if different, at their maximum
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
    """Return the shapes of inputs for these values of their dynamic dimensions."""
    return tuple(tuple(int(substituted(extent, sizes)) for extent in value.shape) for value in inputs)


def described_subject(name: str, details: ModuleInterface) -> TemplateSubject:
    """Describe an archive's module for the AOT executor or the virtual machine, with what is needed to call it."""
    described = (*details.inputs, *details.outputs)
    tensors = tuple(
        DemoTensor(item.name, field, item.shape, item.dtype, item.scale, item.zero_point)
        for item, field in zip(described, field_names(details), strict=True)
    )
    count = len(details.inputs)
    return TemplateSubject(name, "", details, tensors[:count], tensors[count:], (), "", "", ())


@dataclass(frozen=True)
class GivenPool:
    """An array that a program passes to a module."""

    name: str  # of the pool
    array: str
    size: str  # the macro with its bytes
    section: str
    data: str | None  # the macro with its contents; None for a workspace

    @property
    def definition(self) -> list[str]:
        """C lines that define it; the section attribute only applies to ELF."""
        kind, value = ("const uint8_t", f" = {{{self.data}}}") if self.data else ("uint8_t", "")
        return [
            "#if defined(__ELF__)",
            f'__attribute__((section("{self.section}"), aligned({POOL_ALIGNMENT})))',
            "#endif",
            f"static {kind} {self.array}[{self.size}]{value};",
        ]


def given_pools(subject: TemplateSubject) -> tuple[GivenPool, ...]:
    """Return the pools of a module in struct order; raise OptionError for constants too large for a macro."""
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
