"""The C runtime's function table for modules compiled ahead of time, so that microTVM hosts can run them.

In the table, microTVM's AOT executor looks up ``tvmgen_<module>_run``, which takes tensors, and
``tvmgen_<module>_get_c_metadata``. The C interface defines a function of the first name, so both have different C names
here.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.codegen.abi.entry import HostModule, HostTensor, require_no_loaded
from mlfc.codegen.c_files import checks, write_registry
from mlfc.codegen.c_host import c_function, packed_head
from mlfc.codegen.c_interface import field_names
from mlfc.codegen.host import tvm
from mlfc.codegen.host.packed import checked, expected_table, mark_unused
from mlfc.codegen.templates import LICENCE
from mlfc.codegen.writer import Writer
from mlfc.memory.plan import DEFAULT_POOL
from mlfc.support.module_info import ModuleInterface
from mlfc.tir.host import INT, INT32, Body, Function, declaration, pointer

_INCLUDES = (
    "stddef.h", "stdint.h", "string.h", "tvm/runtime/c_backend_api.h", "tvm/runtime/c_runtime_api.h",
    "tvm/runtime/crt/module.h", "tvm/runtime/metadata_types.h",
)  # fmt: skip


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

    `functions` are the packed functions of modules for the graph executor, which are registered under their C names.
    """
    writer = Writer()
    writer.line(f"/* {LICENCE} */")
    writer.lines([f"#include <{header}>" for header in _INCLUDES])
    writer.lines(["", *(f'#include "{module.prefix}.h"' for module in modules), ""])
    if modules:
        writer.lines([*checks().splitlines(), ""])
    table: dict[str, str] = {}
    for module in modules:
        run, metadata = module.functions.values()
        module.write_tables(writer, f"{module.prefix}_", f"{module.prefix}_tables", "struct ", "1")
        # the packed function passes the addresses of tensors to the function on addresses
        call, tensors = f"{module.prefix}_on_addresses", (*module.inputs, *module.outputs)
        module.write_run(writer, call)
        body = Body()
        expected = expected_table(body, [(tensor.dtype, tensor.nbytes) for tensor in tensors])
        data = body.array("data", tvm.ADDRESS, len(tensors))
        mark_unused(body)
        body.requires(checked(f"{module.prefix}_run", expected, len(tensors), tvm.CPU, data))
        body.returns(declaration(call, INT32, pointer(tvm.ADDRESS))(data))
        writer.line(f"static {c_function(Function(run, INT, tvm.PACKED_PARAMETERS, body.stmts))}")
        with writer.block(f"static {packed_head(metadata)}"):
            writer.lines(["(void)args;", "(void)type_codes;", "(void)num_args;", "(void)resource_handle;"])
            writer.line(f"out_ret_value->v_handle = (void *)(uintptr_t)&{module.prefix}_tables;")
            writer.lines(["*out_ret_tcode = kTVMOpaqueHandle;", "return 0;"])
        writer.line()
        table |= module.functions
    writer.lines([f"{packed_head(name)};" for name in functions])
    write_registry(writer, {**table, **dict(zip(functions, functions, strict=True))})
    return writer.text()
