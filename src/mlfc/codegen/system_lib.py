"""The C runtime's function table for modules compiled ahead of time, so that microTVM hosts can run them.

In the table, microTVM's AOT executor looks up ``tvmgen_<module>_run``, which takes tensors, and
``tvmgen_<module>_get_c_metadata``. The C interface defines a function of the first name, so both have different C names
here.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.codegen.abi.entry import HostModule, HostTensor, require_no_loaded
from mlfc.codegen.c_files import checks, write_registry
from mlfc.codegen.c_host import c_function
from mlfc.codegen.c_interface import field_names
from mlfc.codegen.host import tvm
from mlfc.codegen.host.packed import checked, expected_table, mark_unused
from mlfc.codegen.templates import render
from mlfc.codegen.writer import Writer
from mlfc.memory.plan import DEFAULT_POOL
from mlfc.support.module_info import ModuleInterface
from mlfc.tir.host import INT, INT32, Body, Function, declaration, pointer


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
    table: dict[str, str] = {}
    for module in modules:
        table |= module.functions
    registry = Writer()
    write_registry(registry, {**table, **dict(zip(functions, functions, strict=True))})
    return render(
        "system_lib.c", modules=[(module, _packed_run(module)) for module in modules], functions=functions,
        checks=checks(), registry=registry.text(),
    )  # fmt: skip


def _packed_run(module: HostModule) -> str:
    """Return the packed function that passes the addresses of tensors to the function on addresses."""
    tensors, body = (*module.inputs, *module.outputs), Body()
    expected = expected_table(body, [(tensor.dtype, tensor.nbytes) for tensor in tensors])
    data = body.array("data", tvm.ADDRESS, len(tensors))
    mark_unused(body)
    body.requires(checked(f"{module.prefix}_run", expected, len(tensors), tvm.CPU, data))
    body.returns(declaration(f"{module.prefix}_on_addresses", INT32, pointer(tvm.ADDRESS))(data))
    return c_function(Function(f"{module.prefix}_packed_run", INT, tvm.PACKED_PARAMETERS, body.stmts))
