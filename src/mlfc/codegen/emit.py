"""Code generation of a module's files from a planned program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlfc.codegen import c_files
from mlfc.codegen.c_files import entry_file
from mlfc.codegen.c_host import WIDTH, c_function, prototype
from mlfc.codegen.c_interface import Interface, InterfaceState, check_macros, header, tensors
from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.device import DeviceKernel, device_kernels, device_source
from mlfc.codegen.external import ExternalPart, external_parts
from mlfc.codegen.host.aot import AotFunctions
from mlfc.codegen.host.graph_json import MAX_NODE_NAME, GraphConfig, build_graph
from mlfc.codegen.host.packed import launching_function, packed_function
from mlfc.codegen.operators import OperatorsFile, choice, kernel_comment, kernel_functions, level_path
from mlfc.codegen.templates import LICENCE
from mlfc.codegen.unit import Shared, Unit
from mlfc.codegen.writer import PIECES, comment_text
from mlfc.memory import Plan, assign_storages
from mlfc.relay.op import kernel_note
from mlfc.support import c_names
from mlfc.support.content import Data, nbytes_of
from mlfc.support.executable import Executable
from mlfc.support.module_info import ConstantPoolInfo
from mlfc.target.features import Level
from mlfc.tir.ir import PrimFunc
from mlfc.tir.program import COPY

_HASH = 17
_COMPUTE = "_compute"


@dataclass(frozen=True)
class CodeSizes:
    """Sizes in bytes of a module's memory."""

    workspace: int  # for the graph executor, its blocks of intermediate values and the largest scratch
    constants: int  # without padding
    io: int  # inputs and outputs
    shared_constants: int = 0  # the part of `constants` in files that several modules share


@dataclass(frozen=True, eq=False)
class DeviceCode:
    """The kernels of a module that run on a device."""

    kind: str  # of the device
    kernels: tuple[DeviceKernel, ...]
    source: str  # of all kernels, in the device's language


@dataclass(frozen=True, eq=False)
class GeneratedCode:
    """The files of a module."""

    files: Mapping[str, Data]  # by path: ``src/...``, ``include/...`` and ``lib/...``
    function_names: Mapping[str, str]  # C name of each kernel, by its name in the program
    sizes: CodeSizes
    external: tuple[ExternalPart, ...] = ()  # the output of external code generators
    header_name: str | None = None  # the file to include; None for the graph executor
    entry: str | None = None  # the function to call; None for the graph executor
    external_workspace: bool = False  # whether the caller passes the workspace in
    workspace_peers: tuple[str, ...] = ()  # modules that share this workspace
    # the path of the file with its bytes, by pool of constants that the caller loads
    loaded: Mapping[str, str] = field(default_factory=dict)
    graph: GraphConfig | None = None
    plan: Plan | None = None  # including the storages of the graph executor
    device: DeviceCode | None = None  # kernels that run on a device
    executable: Executable | None = None  # of the virtual machine
    # the processor level of each C file that is not compiled for all processors, by path
    levels: Mapping[str, Level] = field(default_factory=dict)

    @property
    def built_files(self) -> Mapping[str, Data]:
        """The files to compile and link, including those of external generators."""
        written = (part for part in self.external if not part.is_module)
        return {**self.files, **{f"external/{part.name}.{part.suffix}": part.data for part in written}}

    def function_of(self, kernel: str) -> str:
        """Return the C name of a kernel's function; for a copy between devices, the executor's name for it."""
        return COPY if kernel == COPY else self.function_names[kernel]


def banner(target_text: str) -> str:
    """Return the first lines of a file of code."""
    return f"/* target: {comment_text(target_text)} */\n/* {LICENCE} */\n"


def generate_aot_c(unit: Unit, shared: Shared) -> GeneratedCode:
    """Print a module that is compiled ahead of time in C."""
    constants = constant_table(unit, shared)
    interface = interface_of(unit, shared, constants)
    functions = kernel_functions(unit, shared, unit.function_names())
    names = functions.names
    workspace = shared.workspace if interface.workspace_peers else None
    host = AotFunctions(unit.program, unit.plan, interface, constants, names, workspace, functions.arguments)
    operators = operators_file(unit, constants)
    operators.declarations.append(prototype(host.main_declaration))
    functions.write(operators)
    # the header, not the code, defines tracing, so that one hook serves profilers on the host and on boards
    hook = f"{PIECES['trace']}\n\n" if unit.program.calls else ""
    operators.functions.append(hook + c_function(host.main()))
    files = {f"src/{unit.module}_lib0.c": entry_file(host).encode(), **code_files(unit, operators, constants)}
    return aot_code(unit, interface, constants, names, files)


def operators_file(unit: Unit, constants: ConstantTable | None = None, includes: tuple[str, ...] = ()) -> OperatorsFile:
    """Return the file of a module's operators, preceded by the selection of a processor level and the constants."""
    operators = OperatorsFile(unit.contracts, includes, levels=unit.levels)
    operators.declarations += level_choice(unit)
    if constants is not None:
        operators.needs.math = constants.uses_math
        operators.declarations.append("\n".join(constants.declarations()))
    return operators


def code_files(unit: Unit, operators: OperatorsFile, constants: ConstantTable | None = None) -> dict[str, Data]:
    """Return the files of a module's operators, of their variants for higher levels, and of large constants."""
    first, path = banner(str(unit.target)), f"src/{unit.module}_lib"
    return {
        f"{path}1.c": (first + operators.text()).encode(),
        **operators.level_files(unit.module, first),
        **(blob_files(constants, f"{path}2.S", first) if constants else {}),
    }


def level_paths(unit: Unit) -> dict[str, Level]:
    """Return the processor level of each file that is not for all processors."""
    higher = unit.levels.higher if unit.levels else ()
    return {level_path(unit.module, level): level for level in higher}


def level_choice(unit: Unit) -> list[str]:
    """Return the text that selects a processor level, if there are several."""
    return [] if unit.levels is None else [choice(unit.levels, unit.module)]


def constant_table(unit: Unit, shared: Shared) -> ConstantTable:
    """Return the constants of a module that is compiled ahead of time."""
    return ConstantTable(
        unit.used_constants(),
        unit.module,
        elsewhere=shared.constants,
        pools=unit.constant_pools,
        packed=unit.packed_constants,
    )


def interface_of(unit: Unit, shared: Shared, constants: ConstantTable) -> Interface:
    """Return the C interface of a module; raise OptionError if two of its macros have the same name."""
    plan = unit.plan
    inputs, outputs = tensors(unit.program)
    external = unit.external_workspace and plan.size + plan.state_bytes > 0
    interface = Interface(
        unit.module,
        inputs,
        outputs,
        plan.workspace_bytes,
        external,
        plan.pools,
        unit.quantization,
        () if external else shared.workspace_peers.get(unit.module, ()),
        constants.bytes_elsewhere,
        unit.workspace_io,
        constants.loaded,
        tuple(
            InterfaceState(
                state.before, plan.state_offsets[state.before], None if state.initial is None else state.initial.data
            )
            for state in unit.program.states
        ),
        plan.state_bytes,
        {call.output.root: note for call in unit.program.calls if (note := kernel_note(call.kernel.name))},
    )
    check_macros(interface)
    return interface


def aot_code(
    unit: Unit, interface: Interface, constants: ConstantTable, names: Mapping[str, str], code: Mapping[str, Data]
) -> GeneratedCode:
    """Return a module compiled ahead of time: the printed code, and the parts that do not depend on its printer."""
    loaded = {pool.name: f"src/{unit.module}_lib3.{pool.name}.bin" for pool in constants.loaded}
    files: dict[str, Data] = {
        f"include/{interface.header_name}": header(interface).encode(),
        **code,
        **{loaded[pool.name]: pool.data for pool in constants.loaded},
    }
    io = sum(tensor.value.nbytes for tensor in (*interface.inputs, *interface.outputs))
    total = constants.nbytes + sum(pool.nbytes for pool in constants.loaded) + constants.bytes_elsewhere
    sizes = CodeSizes(interface.workspace_bytes, total, io, constants.bytes_elsewhere)
    return GeneratedCode(
        files,
        names,
        sizes,
        external_parts(unit, names, names, banner(str(unit.target))),
        interface.header_name,
        interface.entry,
        interface.external_workspace,
        interface.workspace_peers,
        loaded,
    )


def constant_pools(unit: Unit, code: GeneratedCode) -> tuple[ConstantPoolInfo, ...]:
    """Return the non-empty memories of a module's constants; `code` is the code of `unit`."""
    held: dict[str, int] = {}
    for value in unit.used_constants():
        pool = unit.constant_pools[value]
        held[pool.name] = held.get(pool.name, 0) + value.nbytes
    pools = []
    for name, nbytes in held.items():
        path = code.loaded.get(name)
        size = nbytes_of(code.files[path]) if path else nbytes
        pools.append(ConstantPoolInfo(name, size, path))
    return tuple(pools)


def blob_files(constants: ConstantTable, path: str, first: str) -> dict[str, Data]:
    """Return the assembler file and the binary file that hold large constants; none for small ones."""
    if not constants.in_blob:
        return {}
    return {path: (first + constants.assembler()).encode(), f"{path}.bin": constants.blob()}


def generate_graph_c(unit: Unit, shared: Shared) -> GeneratedCode:
    """Print a module for the graph executor in C."""
    names = packed_names(unit)
    on_device = launched_kernels(unit, names)
    operators = operators_file(unit, includes=c_files.INCLUDES)
    in_code = [names[kernel.name] for kernel in unit.kernels_in_code]
    if in_code:
        operators.declarations.append(c_files.checks())
    if on_device:
        operators.declarations.append(c_files.launches())
    functions = kernel_functions(unit, shared, compute_names(names))

    def packed(kernel: PrimFunc) -> str:
        compute, values = functions.names[kernel.name], functions.arguments.get(kernel.name)
        return c_function(packed_function(kernel, names[kernel.name], compute, values))

    functions.write(operators, static=True, after=packed)
    for kernel, launched in on_device.items():
        comment = kernel_comment(kernel, [call for call in unit.program.calls if call.kernel is kernel])
        function = c_function(launching_function(kernel, names[kernel.name], launched), WIDTH)
        operators.functions.append("\n".join([*comment, function]))
    files = code_files(unit, operators)
    if not shared.registry:
        files[f"src/{unit.module}_lib0.c"] = c_files.registry_file(sorted(in_code), LICENCE).encode()
    return graph_code(unit, names, files, on_device)


def launched_kernels(unit: Unit, names: Mapping[str, str]) -> dict[PrimFunc, tuple[DeviceKernel, ...]]:
    """Return the launches of the functions that run on a device; `names` are those of the packed functions."""
    on_device = (kernel for kernel in unit.program.kernels if kernel.device)
    return {kernel: tuple(device_kernels(kernel, names[kernel.name])) for kernel in on_device}


def device_code(unit: Unit, kernels: Sequence[DeviceKernel]) -> DeviceCode | None:
    """Return the kernels of a unit's device in its language; None if it has none."""
    kind = unit.device_target.device if unit.device_target else None
    if kind is None or not kernels:
        return None
    return DeviceCode(kind, tuple(kernels), device_source(kernels, kind, contracts=unit.contracts))


def graph_code(
    unit: Unit,
    names: Mapping[str, str],
    files: Mapping[str, Data],
    on_device: Mapping[PrimFunc, Sequence[DeviceKernel]],
) -> GeneratedCode:
    """Return a module for the graph executor: its code, with the graph and the kernels of devices."""
    program = unit.program
    plan = assign_storages(program, unit.plan)
    graph = build_graph(program, names, plan)
    scratch = max((kernel.scratch_bytes for kernel in program.kernels if kernel.device is None), default=0)
    constants = sum(value.nbytes for value in graph.params.values())
    io = sum(value.nbytes for value in (*program.inputs, *program.outputs))
    shared = sum(plan.bytes_on(device) for device in {storage.device for storage in plan.storages})
    sizes = CodeSizes(shared + scratch, constants, io)
    external = external_parts(unit, names, compute_names(names), banner(str(unit.target)))
    device = device_code(unit, [kernel for group in on_device.values() for kernel in group])
    return GeneratedCode(files, names, sizes, external, graph=graph, plan=plan, device=device)


def compute_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the functions that packed functions call."""
    return {kernel: name + _COMPUTE for kernel, name in names.items()}


def packed_names(unit: Unit) -> dict[str, str]:
    """Return the names of packed functions, whose length the C runtime limits."""
    longest = MAX_NODE_NAME - len(_COMPUTE) - _HASH
    return {
        kernel: name if len(name) <= longest else c_names.bounded(name, longest)
        for kernel, name in unit.function_names().items()
    }
