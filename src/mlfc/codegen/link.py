"""Linking of several modules: common parts are emitted once; and the C runtime's function table for them.

Equal kernels are always shared. Sharing constants and the workspace is optional: shared constants tie the modules'
files together, and modules that share their workspace must never run at the same time.

In the table, microTVM's AOT executor looks up ``tvmgen_<module>_run``, which takes tensors, and
``tvmgen_<module>_get_c_metadata``. The C interface defines a function of the first name, so both have different C names
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlfc.codegen import c_files
from mlfc.codegen.abi.entry import HostModule, HostTensor, host_module, require_no_loaded
from mlfc.codegen.c_files import checks, pool_definition, write_registry
from mlfc.codegen.c_host import c_function
from mlfc.codegen.c_interface import field_names
from mlfc.codegen.constants import ConstantTable, content
from mlfc.codegen.emit import GeneratedCode, banner, blob_files, generate_aot_c, generate_graph_c, level_paths
from mlfc.codegen.external import require_code
from mlfc.codegen.host import tvm
from mlfc.codegen.host.packed import checked, expected_table, mark_unused
from mlfc.codegen.operators import OperatorsFile, printed_form
from mlfc.codegen.templates import LICENCE, render
from mlfc.codegen.unit import NOTHING_SHARED, SHARED_MODULE, Shared, Unit
from mlfc.codegen.vm.code import generate_vm_c
from mlfc.codegen.writer import Writer
from mlfc.errors import OptionError
from mlfc.memory.plan import DEFAULT_POOL
from mlfc.support import c_names
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface
from mlfc.target.features import Level
from mlfc.tir.host import INT, INT32, Body, Function, declaration, pointer
from mlfc.tir.ir import PrimFunc
from mlfc.tir.program import KernelCall, Value

LLVM = "llvm"
_PREFIX = f"tvmgen_{SHARED_MODULE}"


def generate(unit: Unit, shared: Shared = NOTHING_SHARED) -> GeneratedCode:
    """Print a module in the language of its target, without the parts that `shared` puts into common files.

    In C, AOT has ``<module>_lib0.c`` (entry and workspace), ``<module>_lib1.c`` (operators and main function),
    ``<module>_lib2.S`` with its binary file (large constants), and the header. The graph executor has
    ``<module>_lib0.c`` (table of functions) and ``<module>_lib1.c`` (operators). LLVM's objects have the same
    structure: ``lib/<module>_lib<n>.o``.
    """
    if unit.executor == "aot":
        require_code(unit)
    if unit.target.kind == "llvm":
        from mlfc.codegen.llvm.code import generate_llvm  # importing LLVM is slow

        return generate_llvm(unit, shared)
    printers = {"vm": generate_vm_c, "graph": generate_graph_c, "aot": generate_aot_c}
    return replace(printers[unit.executor](unit, shared), levels=level_paths(unit))


@dataclass(frozen=True, eq=False)
class LinkedCode:
    """The code of several modules."""

    modules: tuple[GeneratedCode, ...]  # in the order of the units
    files: Mapping[str, Data]  # of all modules, and their shared parts
    functions: tuple[str, ...] = ()  # C names of the kernels that several modules call
    constants_bytes: int = 0  # of constants that are stored once for several modules
    workspace_bytes: int = 0  # of the memory that several modules share
    workspace_modules: tuple[str, ...] = ()  # these modules

    @property
    def levels(self) -> Mapping[str, Level]:
        """The processor level of each file that is not for all processors."""
        return {path: level for code in self.modules for path, level in code.levels.items()}


@dataclass(eq=False)
class SharedKernel:
    """A kernel that several modules call, in the form in which it is printed."""

    prim: PrimFunc
    contracts: bool
    parallel: str
    aliased: frozenset[int]
    users: set[str] = field(default_factory=set)
    calls: list[KernelCall] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class SharedParts:
    """The parts that modules share."""

    kernels: Mapping[str, SharedKernel]  # by the name of the function
    constants: ConstantTable
    workspace: str | None  # the array that they work in
    workspace_bytes: int
    packed_functions: Sequence[str] | None  # of the one table that all modules have


def generate_together(
    units: Sequence[Unit], *, share_workspace: bool = False, share_weights: bool = False, system_lib: bool = False
) -> LinkedCode:
    """Print several modules with distinct names.

    Their shared parts are in ``mlfc_shared_lib<n>.c``: kernels, constants, workspace. Modules of the graph executor
    share one table of packed functions, ``mlfc_shared_registry.c``. It refers to the code of all of these modules, so
    omit it to link only one of them. If LLVM compiles all modules for one target, these files are objects.

    Parameters
    ----------
    units : sequence of Unit
    share_workspace : bool
        Use one array for all modules that do not get their workspace from the caller.
    share_weights : bool
        Store equal constants of different modules once.
    system_lib : bool
        Also register modules that are compiled ahead of time in the C runtime's table of functions.

    Raises
    ------
    OptionError
        If two modules have the same name, or a name is reserved.
    """
    seen: set[str] = set()
    for unit in units:
        if unit.module in seen or (unit.module == SHARED_MODULE and len(units) > 1):
            cause = "two modules have the name" if unit.module in seen else "the shared code has the name"
            raise OptionError(f"{cause} '{unit.module}'", next_step="Give each module a unique name")
        seen.add(unit.module)
    has_system_lib = system_lib and any(unit.executor == "aot" for unit in units)
    if len(units) == 1:
        code = generate(units[0])
        return LinkedCode((code,), {**code.files, **(_system_lib(units, [code]) if has_system_lib else {})})
    targets = {str(unit.target): unit.target for unit in units}
    # the one LLVM target of all units; None if their shared parts are C
    target = units[0].target if len(targets) == 1 and units[0].target.kind == LLVM else None
    alike = [unit for unit in units if (target or unit.target.kind != LLVM) and unit.target.levels is None]
    kernels = _shared_kernels(alike)
    names = c_names.unique(kernel.prim.name for kernel in kernels.values())
    functions = {key: f"{_PREFIX}_{name}" for key, name in zip(kernels, names, strict=True)}
    table = ConstantTable(_shared_constants(units) if share_weights else [], SHARED_MODULE, external=True)
    symbols = {content(item.value): table.symbol(item.value) for item in table.constants}
    # exclude modules whose workspace is in memories that the user chose or that the caller passes in
    own = (unit.executor != "aot" or unit.plan.spans or unit.external_workspace for unit in units)
    sharing = [
        unit for unit, is_own in zip(units, own, strict=True) if share_workspace and unit.plan.size and not is_own
    ]
    peers = {
        unit.module: tuple(other.module for other in sharing if other is not unit)
        for unit in sharing
        if len(sharing) > 1
    }
    workspace = f"{_PREFIX}_workspace" if peers else None
    graphs = [unit for unit in units if unit.executor == "graph"]
    shared = Shared(functions, symbols, workspace, peers, registry=len(graphs) > 1 or has_system_lib)
    # C kernels are not shared with modules of another printer, or with modules for several processor levels
    alone = replace(shared, functions={})
    modules = tuple(generate(unit, shared if unit in alike else alone) for unit in units)
    size = max(unit.plan.size for unit in sharing) if peers else 0
    parts = SharedParts(
        {functions[key]: kernel for key, kernel in kernels.items()},
        table,
        workspace,
        size,
        _packed_functions(units, modules) if shared.registry and not has_system_lib else None,
    )
    files: dict[str, Data] = {path: data for code in modules for path, data in code.files.items()}
    if target is not None:
        from mlfc.codegen.llvm.code import shared_objects  # importing LLVM is slow

        files |= shared_objects(parts, target)
    else:
        files |= _shared_c(parts, ", ".join(dict.fromkeys(str(unit.target) for unit in units)))
    if has_system_lib:
        files |= _system_lib(units, modules)
    return LinkedCode(modules, files, tuple(functions.values()), table.nbytes, size, tuple(peers))


def _shared_c(parts: SharedParts, targets: str) -> dict[str, Data]:
    """Return the C of the shared parts."""
    texts, table = [], parts.constants
    for contracts in (True, False):
        operators = OperatorsFile(contracts)
        chosen = {name: kernel for name, kernel in parts.kernels.items() if kernel.contracts is contracts}
        for name, kernel in chosen.items():
            operators.add_kernel(kernel.prim, name, kernel.calls, aliased=kernel.aliased, parallel=kernel.parallel)
        texts += [banner(targets) + operators.text()] if chosen else []
    if table.constants or parts.workspace_bytes:
        lines = ["#include <math.h>"] * table.uses_math + ["#include <stdint.h>", ""]
        lines += pool_definition(f"uint8_t {parts.workspace}", parts.workspace_bytes) if parts.workspace else []
        lines += table.declarations() if table.constants and not table.in_blob else []
        texts.append(banner(targets) + "\n".join(lines).rstrip("\n") + "\n")
    files: dict[str, Data] = {f"src/{SHARED_MODULE}_lib{index}.c": text.encode() for index, text in enumerate(texts)}
    files |= blob_files(parts.constants, f"src/{SHARED_MODULE}_lib{len(texts)}.S", banner(targets))
    if parts.packed_functions is not None:
        files[f"src/{SHARED_MODULE}_registry.c"] = c_files.registry_file(parts.packed_functions, LICENCE).encode()
    return files


def _system_lib(units: Sequence[Unit], modules: Sequence[GeneratedCode]) -> dict[str, Data]:
    """Return the C table of functions with the headers it includes: microTVM's templates do not search their folder."""
    pairs = [pair for pair in zip(units, modules, strict=True) if pair[0].executor == "aot"]
    text = system_library([host_module(*pair) for pair in pairs], _packed_functions(units, modules))
    headers = {f"src/{code.header_name}": code.files[f"include/{code.header_name}"] for _, code in pairs}
    return {f"src/{SHARED_MODULE}_registry.c": text.encode(), **headers}


def _shared_kernels(units: Sequence[Unit]) -> dict[str, SharedKernel]:
    """Return the kernels that occur in more than one module, by key, in the order of first use."""
    found: dict[str, SharedKernel] = {}
    for unit in units:
        keys = {}
        for prim in unit.program.kernels:
            # code of external generators is in separate files, with the declarations it needs
            if prim.device is not None or prim.external is not None:
                continue
            keys[prim.name] = unit.kernel_key(prim)
            form, aliased = printed_form(unit, prim), unit.aliased_inputs(prim)
            kernel = SharedKernel(form, unit.contracts, unit.parallel, aliased)
            found.setdefault(keys[prim.name], kernel).users.add(unit.module)
        for call in unit.program.calls:
            if call.kernel.name in keys:
                found[keys[call.kernel.name]].calls.append(call)
    return {key: kernel for key, kernel in found.items() if len(kernel.users) > 1}


def _shared_constants(units: Sequence[Unit]) -> list[Value]:
    """Return one value for each content that the code of more than one module contains, in the order of first use."""
    users: dict[tuple[str, bytes], set[str]] = {}
    first: dict[tuple[str, bytes], Value] = {}
    for unit in units:
        if unit.executor != "aot":  # the graph executor loads its constants from a file
            continue
        for value in unit.used_constants():
            if value in unit.constant_pools:  # memory choices of one module do not apply to others
                continue
            key = content(value)
            users.setdefault(key, set()).add(unit.module)
            first.setdefault(key, value)
    return [value for key, value in first.items() if len(users[key]) > 1]


def _packed_functions(units: Sequence[Unit], modules: Sequence[GeneratedCode]) -> list[str]:
    pairs = [pair for pair in zip(units, modules, strict=True) if pair[0].executor == "graph"]
    return sorted(code.function_names[kernel.name] for unit, code in pairs for kernel in unit.kernels_in_code)


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
