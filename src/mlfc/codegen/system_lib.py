"""The C runtime's table of functions where it has modules that are compiled ahead of time: so hosts can drive them.

microTVM's AOT executor finds two packed functions of a module there, by name: ``tvmgen_<module>_run``, on tensors, and
``tvmgen_<module>_get_c_metadata``. The C interface has a function of the first name, so here both have names of their
own in C, and a module serves both kinds of callers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mlfc.codegen.abi.entry import RunFunction, Slot, c_dtype, require_no_loaded
from mlfc.codegen.c_files import checks, write_registry
from mlfc.codegen.c_host import c_function, packed_head
from mlfc.codegen.c_interface import LICENCE, field_names, tensors
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.host import tvm
from mlfc.codegen.host.packed import checked, expected_table, mark_unused
from mlfc.codegen.unit import Unit
from mlfc.codegen.writer import Writer, c_string
from mlfc.memory.pools import DEFAULT_POOL
from mlfc.support import dtypes
from mlfc.support.c_names import names_in_tables
from mlfc.support.module_info import ModuleInterface
from mlfc.tir.host import INT, INT32, Body, Function, declaration, pointer

_LONGEST_NAME = 1000
_INCLUDES = (
    "stddef.h", "stdint.h", "string.h", "tvm/runtime/c_backend_api.h", "tvm/runtime/c_runtime_api.h",
    "tvm/runtime/crt/module.h", "tvm/runtime/metadata_types.h",
)  # fmt: skip


@dataclass(frozen=True)
class HostTensor:
    """An input or output."""

    name: str  # the model's own
    field: str  # in the struct of the C interface
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * dtypes.nbytes(dtypes.element(self.dtype))


@dataclass(frozen=True)
class HostModule:
    """A module compiled ahead of time that hosts may drive."""

    name: str
    inputs: tuple[HostTensor, ...]
    outputs: tuple[HostTensor, ...]
    pools: tuple[tuple[str, int], ...] = ()  # name and bytes of the memories that the caller passes in
    workspace_io: bool = False  # inputs and outputs are in the workspace
    state_bytes: int = 0  # of the memory of states among those that the caller passes in

    @property
    def prefix(self) -> str:
        """The start of its symbols."""
        return f"tvmgen_{self.name}"

    @property
    def functions(self) -> dict[str, str]:
        """C names by the names under which the executor looks for them."""
        return {
            f"{self.prefix}_run": f"{self.prefix}_packed_run",
            f"{self.prefix}_get_c_metadata": f"{self.prefix}_packed_metadata",
        }


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


def described_module(name: str, details: ModuleInterface) -> HostModule:
    """Return a module of an archive by its interface; raise OptionError if its caller must load constants."""
    require_no_loaded([pool.name for pool in details.constant_pools if pool.file], name)
    described = (*details.inputs, *details.outputs)
    fields = field_names(details)
    made = [HostTensor(item.name, field, item.shape, item.dtype) for item, field in zip(described, fields, strict=True)]
    size = details.memory.workspace_bytes
    pools = tuple((pool.name, pool.nbytes) for pool in details.pools) or (((DEFAULT_POOL, size),) if size else ())
    given = pools if details.external_workspace else ()
    count = len(details.inputs)
    state_bytes = details.memory.state_bytes if details.external_workspace else 0
    return HostModule(name, tuple(made[:count]), tuple(made[count:]), given, details.workspace_io, state_bytes)


def system_library(modules: Sequence[HostModule], functions: Sequence[str] = ()) -> str:
    """Return the file with ``TVMSystemLibEntryPoint``, and packed functions of modules compiled ahead of time.

    `functions` are the packed functions of modules for the graph executor, which have their own names.
    """
    writer = Writer()
    writer.line(f"/* {LICENCE} */")
    writer.lines([f"#include <{header}>" for header in _INCLUDES])
    writer.lines(["", *(f'#include "{module.prefix}.h"' for module in modules), ""])
    if modules:
        writer.lines([*checks().splitlines(), ""])
    table: dict[str, str] = {}
    for module in modules:
        _write_module(writer, module)
        table |= module.functions
    writer.lines([f"{packed_head(name)};" for name in functions])
    write_registry(writer, {**table, **dict(zip(functions, functions, strict=True))})
    return writer.text()


def _write_module(writer: Writer, module: HostModule) -> None:
    prefix = module.prefix
    run, metadata = module.functions.values()
    _write_tables(writer, module)
    slots = [tuple(Slot(tensor.field, tensor.nbytes) for tensor in group) for group in (module.inputs, module.outputs)]
    call = f"{prefix}_on_addresses"
    RunFunction(
        prefix, f"{prefix}_run", slots[0], slots[1], module.pools, module.workspace_io, module.state_bytes
    ).write(writer, call)
    writer.line(f"static {c_function(_packed_run(module, run, call))}")
    with writer.block(f"static {packed_head(metadata)}"):
        writer.lines(["(void)args;", "(void)type_codes;", "(void)num_args;", "(void)resource_handle;"])
        writer.line(f"out_ret_value->v_handle = (void *)(uintptr_t)&{prefix}_tables;")
        writer.lines(["*out_ret_tcode = kTVMOpaqueHandle;", "return 0;"])
    writer.line()


def _packed_run(module: HostModule, name: str, call: str) -> Function:
    """Return the packed function `name` that hands the addresses of tensors to the function `call`."""
    tensors = (*module.inputs, *module.outputs)
    body = Body()
    expected = expected_table(body, [(tensor.dtype, tensor.nbytes) for tensor in tensors])
    data = body.array("data", tvm.ADDRESS, len(tensors))
    mark_unused(body)
    body.requires(checked(f"{module.prefix}_run", expected, len(tensors), tvm.CPU, data))
    body.returns(declaration(call, INT32, pointer(tvm.ADDRESS))(data))
    return Function(name, INT, tvm.PACKED_PARAMETERS, body.stmts)


def _write_tables(writer: Writer, module: HostModule) -> None:
    prefix = module.prefix
    # as TVM's own tables have them: the names of inputs in C, and numbers of outputs
    inputs = names_in_tables(tensor.name for tensor in module.inputs)
    groups = {"inputs": inputs, "outputs": [f"output{index}" for index in range(len(module.outputs))]}
    for kind, names in groups.items():
        group: tuple[HostTensor, ...] = getattr(module, kind)
        for index, tensor in enumerate(group):
            extents = ", ".join(map(str, tensor.shape)) or "0"
            writer.line(f"static const int64_t {prefix}_{kind}_shape_{index}[] = {{{extents}}};")
        with writer.block(f"static const struct TVMTensorInfo {prefix}_{kind}_info[{max(1, len(group))}] =", "};"):
            for index, (name, tensor) in enumerate(zip(names, group, strict=True)):
                shape = f"{prefix}_{kind}_shape_{index}, {len(tensor.shape)}"
                writer.line(f"{{{c_string(name, _LONGEST_NAME)}, {shape}, {c_dtype(tensor.dtype)}}},")
            if not group:
                writer.line("{NULL, NULL, 0, {0, 0, 0}},")
    with writer.block(f"static const struct TVMMetadata {prefix}_tables =", "};"):
        writer.line(f"1, {prefix}_inputs_info, {len(module.inputs)}, {prefix}_outputs_info, {len(module.outputs)},")
        writer.line(f"NULL, 0, NULL, 0, {c_string(prefix, len(prefix))},")
    writer.line()
