"""From a planned program to the files of a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlforge.codegen import packed
from mlforge.codegen.c_interface import LICENCE, Interface, check_macros, header, tensors
from mlforge.codegen.constants import ConstantTable
from mlforge.codegen.kernel_functions import kernel_functions
from mlforge.codegen.operators import OperatorsFile
from mlforge.codegen.unit import NOTHING_SHARED, Shared, Unit
from mlforge.codegen.writer import comment_text
from mlforge.executor.aot import AotExecutor
from mlforge.executor.graph_json import MAX_NODE_NAME, Graph, build_graph
from mlforge.memory import Storages, assign_storages
from mlforge.support import c_names
from mlforge.support.content import Data, nbytes_of
from mlforge.tir.ir import PrimFunc

_HASH = 17
_COMPUTE = "_compute"


@dataclass(frozen=True)
class Sizes:
    """Bytes that a module needs.

    Attributes
    ----------
    workspace : int
        For the graph executor, its blocks of intermediates and the largest scratch.
    constants : int
        Without padding.
    io : int
        Inputs and outputs.
    shared_constants : int
        How much of `constants` lies in files that belong to several modules.
    """

    workspace: int
    constants: int
    io: int
    shared_constants: int = 0


@dataclass(frozen=True, eq=False)
class GeneratedCode:
    """The files of a module.

    Attributes
    ----------
    files : dict of str to Data
        By path: ``src/...`` and ``include/...``.
    header_name : str or None
        The file to include; None for the graph executor.
    entry : str or None
        The function to call; None for the graph executor.
    function_names : dict of str to str
        C name of each kernel by its name in the program.
    sizes : Sizes
    external_workspace : bool
        Whether the caller passes the workspace in.
    workspace_peers : tuple of str
        Modules that work in the same memory.
    loaded : mapping of str to str
        By pool of constants that the caller loads, the path of the file with its bytes.
    graph : Graph or None
    storages : Storages or None
        For the graph executor.
    """

    files: Mapping[str, Data]
    header_name: str | None
    entry: str | None
    function_names: Mapping[str, str]
    sizes: Sizes
    external_workspace: bool
    workspace_peers: tuple[str, ...] = ()
    loaded: Mapping[str, str] = field(default_factory=dict)
    graph: Graph | None = None
    storages: Storages | None = None


def generate(unit: Unit, shared: Shared = NOTHING_SHARED) -> GeneratedCode:
    """Print a module as C.

    Parameters
    ----------
    unit : Unit
    shared : Shared
        What lies in files that belong to several modules.

    Returns
    -------
    GeneratedCode
        For AOT ``<module>_lib0.c`` (entry and workspace), ``<module>_lib1.c`` (operators and main function), where
        the constants are large ``<module>_lib2.S`` and its binary file, and the header. For the graph executor
        ``<module>_lib0.c`` (table of functions) and ``<module>_lib1.c`` (operators).
    """
    return _graph(unit, shared) if unit.executor == "graph" else _aot(unit, shared)


def banner(target_text: str) -> str:
    """Return the first lines of a file of code."""
    return f"/* target: {comment_text(target_text)} */\n/* {LICENCE} */\n"


def _aot(unit: Unit, shared: Shared) -> GeneratedCode:
    program, plan, module = unit.program, unit.plan, unit.module
    inputs, outputs = tensors(program.inputs, program.outputs)
    external = unit.external_workspace and plan.size > 0
    peers = () if external else shared.workspace_peers.get(module, ())
    constants = ConstantTable(
        unit.used_constants(),
        module,
        elsewhere=shared.constants,
        pools=unit.constant_pools,
        packed=unit.packed_constants,
    )
    interface = Interface(
        module,
        inputs,
        outputs,
        plan.workspace_bytes,
        external,
        plan.pools,
        unit.quantization,
        peers,
        constants.bytes_elsewhere,
        unit.workspace_io,
        constants.loaded,
    )
    check_macros(interface)
    functions = kernel_functions(unit, shared, _function_names(unit))
    names = functions.names
    workspace = shared.workspace if peers else None
    executor = AotExecutor(program, plan, interface, constants, names, workspace, functions.arguments)
    operators = OperatorsFile(unit.contracts)
    operators.needs.math = constants.uses_math
    operators.declarations += ["\n".join(constants.declarations()), executor.main_prototype()]
    functions.write(operators)
    operators.functions.append(executor.main_function())
    first = banner(unit.target_text)
    loaded = {pool.name: f"src/{pool.file_name(module)}" for pool in constants.loaded}
    files: dict[str, Data] = {
        f"include/{interface.header_name}": header(interface).encode(),
        f"src/{module}_lib0.c": executor.entry_file().encode(),
        f"src/{module}_lib1.c": (first + operators.text()).encode(),
        **blob_files(constants, f"src/{module}_lib2.S", first),
        **{loaded[pool.name]: pool.data for pool in constants.loaded},
    }
    io = sum(tensor.value.nbytes for tensor in (*inputs, *outputs))
    total = constants.nbytes + constants.bytes_loaded + constants.bytes_elsewhere
    sizes = Sizes(plan.workspace_bytes, total, io, constants.bytes_elsewhere)
    return GeneratedCode(files, interface.header_name, interface.entry, names, sizes, external, peers, loaded)


def constant_pools(unit: Unit, code: GeneratedCode) -> list[dict[str, object]]:
    """Return the memories of a module's constants that hold any, as metadata have them.

    Parameters
    ----------
    unit : Unit
    code : GeneratedCode
        Of the unit.
    """
    held: dict[str, int] = {}
    for value in unit.used_constants():
        pool = unit.constant_pools[value]
        held[pool.name] = held.get(pool.name, 0) + value.nbytes
    pools = []
    for name, nbytes in held.items():
        path = code.loaded.get(name)
        size = nbytes_of(code.files[path]) if path else nbytes
        pools.append({"name": name, "bytes": size, "file": path})
    return pools


def blob_files(constants: ConstantTable, path: str, first: str) -> dict[str, Data]:
    """Return the assembler file and the binary file that hold large constants; none for small ones."""
    if not constants.in_blob:
        return {}
    return {path: (first + constants.assembler()).encode(), f"{path}.bin": constants.blob()}


def _graph(unit: Unit, shared: Shared) -> GeneratedCode:
    program, module = unit.program, unit.module
    names = _packed_names(unit)
    storages = assign_storages(program, unit.plan)
    graph = build_graph(program, names, storages)
    operators = OperatorsFile(unit.contracts, packed.INCLUDES)
    if program.kernels:
        operators.declarations.append(packed.CHECKS)
    functions = kernel_functions(unit, shared, {kernel: name + _COMPUTE for kernel, name in names.items()})

    def packed_function(kernel: PrimFunc) -> str:
        compute, values = functions.names[kernel.name], functions.arguments.get(kernel.name)
        return packed.packed_function(kernel, names[kernel.name], compute, values)

    functions.write(operators, static=True, after=packed_function)
    files: dict[str, Data] = {f"src/{module}_lib1.c": (banner(unit.target_text) + operators.text()).encode()}
    if not shared.registry:
        files[f"src/{module}_lib0.c"] = packed.registry_file(sorted(names.values()), LICENCE).encode()
    scratch = max((kernel.scratch_bytes for kernel in program.kernels), default=0)
    constants = sum(value.nbytes for value in graph.params.values())
    io = sum(value.nbytes for value in (*program.inputs, *program.outputs))
    sizes = Sizes(storages.workspace_bytes + scratch, constants, io)
    return GeneratedCode(files, None, None, names, sizes, False, graph=graph, storages=storages)


def _function_names(unit: Unit) -> dict[str, str]:
    """Return the names of kernels that have functions of their own."""
    kernels = unit.program.kernels
    plain = c_names.unique(kernel.name for kernel in kernels)
    return {kernel.name: f"tvmgen_{unit.module}_{name}" for kernel, name in zip(kernels, plain, strict=True)}


def _packed_names(unit: Unit) -> dict[str, str]:
    """Return the names of packed functions, which the C runtime keeps in a fixed number of bytes."""
    longest = MAX_NODE_NAME - len(_COMPUTE) - _HASH
    return {
        kernel: name if len(name) <= longest else c_names.bounded(name, longest)
        for kernel, name in _function_names(unit).items()
    }
