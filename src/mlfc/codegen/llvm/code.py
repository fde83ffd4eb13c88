"""Compilation of a planned program to a module's objects by LLVM; `codegen.emit` does the same in C."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import llvmlite.ir as ll
from llvmlite import ir

from mlfc.codegen import emit
from mlfc.codegen.c import preamble, signature
from mlfc.codegen.c_expr import Requirements
from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.emit import GeneratedCode, aot_code, banner, compute_names, constant_table, graph_code, interface_of
from mlfc.codegen.host import tvm
from mlfc.codegen.host.aot import STATE_ARRAY, STATE_FLAG, AotFunctions
from mlfc.codegen.host.packed import launching_function, packed_function
from mlfc.codegen.llvm.context import INT8, INT32, POINTER, FunctionContext, Value, offset
from mlfc.codegen.llvm.expressions import ExprEmitter
from mlfc.codegen.llvm.host import HostFunctions, constant_global, static_array
from mlfc.codegen.llvm.machine import Machine, machine_of
from mlfc.codegen.llvm.objects import CompiledObject, ConstantGlobals, ConstantsObject, data_pieces, is_elf
from mlfc.codegen.llvm.parallel import Parts, describe_pointer
from mlfc.codegen.llvm.statements import StmtEmitter, separate_scopes
from mlfc.codegen.operators import dispatcher, printed_form, served
from mlfc.codegen.unit import SHARED_MODULE, Shared, Unit
from mlfc.codegen.vm.code import constants_of, host_functions, vm_code
from mlfc.codegen.writer import PIECES
from mlfc.memory.plan import DEFAULT_POOL, STATE_SECTION, pool_array, pool_section
from mlfc.support.c_names import LEVEL_SECTION, sanitize
from mlfc.support.content import Data
from mlfc.target.features import Level, Levels
from mlfc.target.llvm import GENERIC, TRIPLE, host_triple
from mlfc.target.target import Target, parse_target
from mlfc.tir.extents import as_index, variable
from mlfc.tir.host import INT, Function, declaration
from mlfc.tir.independence import of_function
from mlfc.tir.ir import PrimFunc, Stmt
from mlfc.tir.parallel import parallelize
from mlfc.tir.unroll import Unroll


def emit_kernel(
    module: Value,
    prim: PrimFunc,
    name: str,
    *,
    machine: Machine,
    contracts: bool,
    aliased: frozenset[int] = frozenset(),
    parallel: str = "",
    compact: bool = False,
) -> Value:
    """Define a kernel in a module.

    Parameters
    ----------
    module : llvmlite.ir.Module
    prim : PrimFunc
    name : str
    machine : Machine
    contracts : bool
        Whether products and sums of floats may be fused. They are fused wherever C compilers fuse them within an
        expression, so the result does not depend on other optimizations.
    aliased : frozenset of int
        Positions of inputs that the output may overlap in addition to those of `PrimFunc.inplace`; see
        `tir.inplace_overlap`.
    parallel : str
        The function that distributes its work over threads, if any.
    compact : bool
        Do not unroll loops with long bodies; see `codegen.statements`.

    Returns
    -------
    llvmlite.ir.Function
        The function, which returns int32 0. The caller may change its linkage.
    """
    prim = Unroll(keeps_begins=bool(parallel))(prim)
    if parallel:
        prim = parallelize(prim, aliased)
    pointers = [POINTER] * (len(prim.params) + bool(prim.scratch))
    function = ll.Function(module, ll.FunctionType(INT32, [*pointers, *[INT32] * len(prim.symbols)]), name)
    _describe(function, prim, aliased)
    builder = ll.IRBuilder(function.append_basic_block("entry"))
    context = FunctionContext(module, builder, machine, contracts, compact)
    for buffer, argument in zip(prim.params, function.args, strict=False):
        context.buffers[id(buffer)] = argument
    numbers = function.args[len(function.args) - len(prim.symbols) :]
    context.variables.update(zip(map(id, map(variable, prim.symbols)), numbers, strict=True))
    context.ranges.know_buffers((*prim.params, *prim.scratch))
    exprs = ExprEmitter(context)
    for buffer, start in zip(prim.scratch, prim.scratch_offsets, strict=True):
        at = offset(start) if isinstance(start, int) else exprs.value(as_index(start, "int64"))
        workspace = function.args[len(prim.params)]
        context.buffers[id(buffer)] = builder.gep(workspace, [at], inbounds=True, source_etype=INT8)
    if len(prim.scratch) > 1:
        scopes = separate_scopes(module, len(prim.scratch))
        context.scopes.update({id(buffer): scope for buffer, scope in zip(prim.scratch, scopes, strict=True)})
    body = builder.append_basic_block("body")
    builder.position_at_end(body)
    independence = of_function(prim, aliased)
    overlapped = {prim.inputs[position] for position in aliased.union(prim.inplace)}
    overlapped |= {prim.output} if overlapped else set()

    def write(inside: FunctionContext, stmt: Stmt) -> None:
        StmtEmitter(inside, independence).run(stmt)

    parts = Parts(prim, name, parallel, frozenset(overlapped), write)
    StmtEmitter(context, independence, parts).run(prim.body)
    builder.ret(ll.Constant(INT32, 0))
    with builder.goto_block(function.entry_basic_block):
        builder.branch(body)
    return function


def _describe(function: Value, prim: PrimFunc, aliased: frozenset[int]) -> None:
    """Declare the known properties of the arguments: their sizes, and which do not overlap others."""
    function.attributes.add("nounwind")
    function.attributes.add("nobuiltin")  # math library calls must not be replaced by other formulas
    aliased = aliased.union(prim.inplace)
    overlapped = {id(prim.inputs[position]) for position in aliased}
    if aliased:
        overlapped.add(id(prim.output))
    names = [buffer.name for buffer in prim.params]
    sizes = [buffer.nbytes for buffer in prim.params]
    alone = [id(buffer) not in overlapped for buffer in prim.params]
    if prim.scratch:
        names, sizes, alone = [*names, "workspace"], [*sizes, prim.scratch_bytes], [*alone, True]
    for argument, symbol in zip(function.args[len(names) :], prim.symbols, strict=True):
        argument.name = sanitize(symbol.name)
    for argument, name, size, is_alone in zip(function.args, names, sizes, alone, strict=False):
        describe_pointer(argument, sanitize(name), size, is_alone=is_alone)


def empty_module(name: str, machine: Machine) -> ir.Module:
    """Return a module for a machine."""
    module = ir.Module(name)
    module.triple = machine.triple
    module.data_layout = machine.data_layout()
    return module


def kernel_names(unit: Unit, shared: Shared, own: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the function of each kernel: its own, or that of a function in another file."""
    return {
        kernel.name: shared.functions.get(unit.kernel_key(kernel), own[kernel.name]) for kernel in unit.program.kernels
    }


def defined_kernels(unit: Unit, shared: Shared) -> list[PrimFunc]:
    """Return the kernels of a unit, except those of another file, a device or an external generator."""
    return [
        kernel
        for kernel in unit.program.kernels
        if unit.kernel_key(kernel) not in shared.functions and kernel.external is None and kernel.device is None
    ]


def emit_kernels(
    unit: Unit, shared: Shared, module: ir.Module, names: Mapping[str, str], machine: Machine, *, internal: bool = False
) -> None:
    """Define the functions of a unit's kernels; those for several processor levels are in separate files.

    `names` are by kernel; `internal` functions are invisible to other files.
    """
    for kernel in defined_kernels(unit, shared) if unit.levels is None else ():
        function = emit_kernel(
            module,
            printed_form(unit, kernel),
            names[kernel.name],
            machine=machine,
            contracts=unit.contracts,
            aliased=unit.aliased_inputs(kernel),
            parallel=unit.parallel,
        )
        if internal:
            function.linkage = "internal"
        else:
            # other functions may call it, so inlining would only duplicate code
            function.attributes.add("noinline")


_COUNT_BYTES = 2


def generate_llvm(unit: Unit, shared: Shared, *, traced: bool = False) -> GeneratedCode:
    """Return the code of a module as objects, which are compiled when their bytes are first read.

    AOT modules have ``<module>_lib0.o`` (entry and workspace), ``<module>_lib1.o`` (operators and main function),
    ``<module>_lib2.o`` (large constants), and the same header as C. Modules of the graph executor have
    ``<module>_lib0.o`` (table of functions) and ``<module>_lib1.o`` (operators). Dynamic models have no
    ``<module>_lib0.o``. For several levels of processors, see `level_files`. If `traced`, the main function of AOT
    calls ``mlfc_trace_begin`` and ``mlfc_trace_end`` around each operator, for profiles.
    """
    machine = machine_of(unit.target, unit.only_level)
    if unit.executor == "graph":
        return with_levels(unit, _graph(unit, shared, machine))
    if unit.executor == "vm":
        return with_levels(unit, _vm(unit, shared, machine))
    constants = constant_table(unit, shared)
    interface = interface_of(unit, shared, constants)
    names = kernel_names(unit, shared, unit.function_names())
    workspace = shared.workspace if interface.workspace_peers else None
    host = AotFunctions(unit.program, unit.plan, interface, constants, names, workspace)
    entry = CompiledObject(partial(_entry_module, host, machine), machine, unit.target.features.optimize)
    operators = _OperatorsModule(unit, shared, names, lambda: [host.main()], machine, constants, traced=traced)
    files: dict[str, Data] = {f"lib/{unit.module}_lib0.o": entry, **operators.files()}
    return with_levels(unit, aot_code(unit, interface, constants, names, files))


def _graph(unit: Unit, shared: Shared, machine: Machine) -> GeneratedCode:
    names = emit.packed_names(unit)
    computing = kernel_names(unit, shared, compute_names(names))
    on_device = emit.launched_kernels(unit, names)

    def packed(kernel: PrimFunc) -> Function:
        if kernel in on_device:
            return launching_function(kernel, names[kernel.name], on_device[kernel])
        return packed_function(kernel, names[kernel.name], computing[kernel.name])

    operators = _OperatorsModule(unit, shared, computing, lambda: map(packed, unit.kernels_in_code), machine)
    files = operators.files()
    if not shared.registry:
        ordered = sorted(names[kernel.name] for kernel in unit.kernels_in_code)
        make = partial(registry_module, f"{unit.module}_lib0", ordered, machine)
        files[f"lib/{unit.module}_lib0.o"] = CompiledObject(make, machine, unit.target.features.optimize)
    return graph_code(unit, names, files, on_device)


def _vm(unit: Unit, shared: Shared, machine: Machine) -> GeneratedCode:
    constants, names = constants_of(unit), kernel_names(unit, shared, unit.function_names())
    functions = partial(host_functions, unit, constants, names, {})
    traced = not unit.target.features.is_microcontroller
    operators = _OperatorsModule(unit, shared, names, functions, machine, constants, traced=traced)
    return vm_code(unit, constants, names, operators.files())


@dataclass(frozen=True, eq=False)
class _OperatorsModule:
    """The kernels of a module, its constants, and the host functions that call the kernels."""

    unit: Unit
    shared: Shared
    names: Mapping[str, str]  # of the kernels' functions
    functions: Callable[[], Iterable[Function]]
    machine: Machine
    constants: ConstantTable | None = None  # None for the graph executor, which loads them
    traced: bool = False

    @property
    def is_internal(self) -> bool:
        """True if only the kernels' own object calls them."""
        return self.unit.executor != "aot"

    def files(self) -> dict[str, Data]:
        """Return the objects: kernels and functions, large constants, and the kernels of higher levels."""
        path, optimize = f"lib/{self.unit.module}_lib", self.unit.target.features.optimize
        large = self.constants if self.constants is not None and self.constants.in_blob else None
        return {
            f"{path}1.o": CompiledObject(self.module, self.machine, optimize),
            **({f"{path}2.o": ConstantsObject(tuple(data_pieces(large)), self.machine)} if large else {}),
            **level_files(self.unit, self.shared, self.names, internal=self.is_internal),
        }

    def module(self) -> ir.Module:
        """Return the module of the kernels and functions."""
        unit, constants, machine = self.unit, self.constants, self.machine
        module = empty_module(f"{unit.module}_lib1", machine)
        emit_kernels(unit, self.shared, module, self.names, machine, internal=self.is_internal)
        if constants is not None:
            made = ConstantGlobals(module, constants, is_elf(machine))
            for value in constants.values:
                if constants.loaded_place(value) is None:
                    made.get(value)
        host = HostFunctions(module, self.traced, has_weak=is_elf(machine))
        for function in self.functions():
            host.define(function)
        return module


def native_unit(unit: Unit) -> Unit | None:
    """Return a unit with the host machine as its target, if its own target is every machine of this kind; else None."""
    target = unit.target
    if target.mcpu != GENERIC or target.options != {TRIPLE: host_triple()}:
        return None
    native = parse_target(f"{target.kind} -mcpu=native", target.features.optimize)
    return replace(unit, target=replace(native, features=target.features))


def _entry_module(host: AotFunctions, machine: Machine) -> ir.Module:
    module = empty_module(f"{host.interface.module}_lib0", machine)
    if not (host.interface.external_workspace or host.shared_workspace):
        for pool in host.plan.pools:
            static_array(module, pool_array(pool.name), pool.nbytes, pool_section(pool.name) if is_elf(machine) else "")
    if host.interface.states and not host.interface.external_workspace:
        section = STATE_SECTION if is_elf(machine) else ""
        static_array(module, STATE_ARRAY, host.interface.state_bytes, section)
        if host.interface.has_state_flag:
            static_array(module, STATE_FLAG, 1)
    functions = HostFunctions(module)
    for function in (host.entry(), *host.mappers(), *host.states.functions()):
        functions.define(function)
    return module


def registry_module(name: str, functions: Sequence[str], machine: Machine) -> ir.Module:
    """Return a module with the table that registers packed functions with the C runtime: ``TVMSystemLibEntryPoint``."""
    module = empty_module(name, machine)
    host = HostFunctions(module)
    # their count in two bytes, little-endian, then the NUL-terminated names
    text = len(functions).to_bytes(_COUNT_BYTES, "little") + b"".join(b"%s\0" % item.encode() for item in functions)
    names = ir.Constant(ir.ArrayType(INT8, len(text) + 1), bytearray(text + b"\0"))
    symbols = [host.declared(Function(item, INT, tvm.PACKED_PARAMETERS)) for item in functions] or [
        ir.Constant(POINTER, None)
    ]
    table = ir.Constant(ir.ArrayType(POINTER, len(symbols)), symbols)
    parts = [constant_global(module, "function_names", names), constant_global(module, "functions", table)]
    registry = constant_global(module, "registry", ir.Constant.literal_struct(parts))
    library = constant_global(module, "system_library", ir.Constant.literal_struct([registry]))
    entry = host.declared(declaration("TVMSystemLibEntryPoint", tvm.ADDRESS))
    ir.IRBuilder(entry.append_basic_block("entry")).ret(library)
    return module


if TYPE_CHECKING:
    from mlfc.codegen.link import SharedParts


def shared_objects(parts: SharedParts, target: Target) -> dict[str, Data]:
    """Return the objects of the parts that modules share, with the paths of the C files."""
    machine, optimize = machine_of(target), target.features.optimize
    files: dict[str, Data] = {}

    def kernels() -> ir.Module:
        module = empty_module(f"{SHARED_MODULE}_lib0", machine)
        for name, kernel in parts.kernels.items():
            emit_kernel(
                module,
                kernel.prim,
                name,
                machine=machine,
                contracts=kernel.contracts,
                aliased=kernel.aliased,
                parallel=kernel.parallel,
            )
        return module

    def data() -> ir.Module:
        module = empty_module(f"{SHARED_MODULE}_lib1", machine)
        if parts.workspace:
            section = pool_section(DEFAULT_POOL) if is_elf(machine) else ""
            static_array(module, parts.workspace, parts.workspace_bytes, section).linkage = ""
        found = ConstantGlobals(module, parts.constants, is_elf(machine))
        for item in () if parts.constants.in_blob else parts.constants.constants:
            found.get(item.value).linkage = ""
        return module

    if parts.kernels:
        files[f"lib/{SHARED_MODULE}_lib0.o"] = CompiledObject(kernels, machine, optimize)
    if parts.workspace or parts.constants.constants:
        files[f"lib/{SHARED_MODULE}_lib1.o"] = CompiledObject(data, machine, optimize)
    if parts.constants.in_blob:
        files[f"lib/{SHARED_MODULE}_lib2.o"] = ConstantsObject(tuple(data_pieces(parts.constants)), machine)
    if parts.packed_functions is not None:
        table = partial(registry_module, f"{SHARED_MODULE}_registry", list(parts.packed_functions), machine)
        files[f"lib/{SHARED_MODULE}_registry.o"] = CompiledObject(table, machine, optimize)
    return files


def level_files(unit: Unit, shared: Shared, names: Mapping[str, str], *, internal: bool = False) -> dict[str, Data]:
    """Return the objects and the C of a unit's kernels, if it has several processor levels.

    ``lib/<module>_lib1_<level>.o`` has the functions that a level accelerates, and ``src/<module>_levels.c`` the
    dispatching functions, under the kernels' names. `names` are by kernel; no other library sees `internal` ones.
    """
    if unit.levels is None:
        return {}
    files: dict[str, Data] = {f"src/{unit.module}_levels.c": _choice_file(unit, unit.levels, shared, names, internal)}
    for level in unit.levels.levels:
        kernels = [
            kernel
            for kernel in defined_kernels(unit, shared)
            if level.llvm is not None and level in served(unit.levels, kernel)
        ]
        if kernels:
            path = f"lib/{unit.module}_lib1_{level.symbol}.o"
            machine = machine_of(unit.target, level.name)
            make = partial(_level_module, unit, kernels, names, level, machine)
            files[path] = CompiledObject(make, machine, unit.target.features.optimize)
    return files


def with_levels(unit: Unit, code: GeneratedCode) -> GeneratedCode:
    """Return code with the processor level of each object that is not for all processors."""
    higher = unit.levels.higher if unit.levels else ()
    return replace(code, levels={f"lib/{unit.module}_lib1_{level.symbol}.o": level for level in higher})


def _level_module(
    unit: Unit, kernels: list[PrimFunc], names: Mapping[str, str], level: Level, machine: Machine
) -> ir.Module:
    module = empty_module(f"{unit.module}_lib1_{level.symbol}", machine)
    for kernel in kernels:
        function = emit_kernel(
            module,
            kernel.at(level.name),
            f"{names[kernel.name]}_{level.symbol}",
            machine=machine,
            contracts=unit.contracts,
            aliased=unit.aliased_inputs(kernel),
            parallel=unit.parallel,
            # if vectors requantize, LLVM's unrolled copies are short, and loops would take a tenth more time
            compact=level.features.compact and not level.features.fixed_point_lanes,
        )
        function.linkage = "hidden"  # a visibility, which LLVM's syntax has in the same position
    for function in module.functions:
        if not function.is_declaration and is_elf(machine):
            function.section = LEVEL_SECTION + level.name  # for counting the functions of a level
    return module


def _choice_file(unit: Unit, levels: Levels, shared: Shared, names: Mapping[str, str], internal: bool) -> bytes:
    """Return the C that selects a level, and the functions that dispatch to it."""
    texts = ["\n".join(preamble(Requirements())), PIECES["hidden"], *emit.level_choice(unit)]
    for kernel in defined_kernels(unit, shared):
        name, aliased = names[kernel.name], unit.aliased_inputs(kernel)
        chosen = [level for level in served(levels, kernel) if level.llvm is not None]
        own = {level.name: f"{name}_{level.symbol}" for level in chosen}
        heads = [f"{signature(kernel, function, aliased)} MLF_HIDDEN;" for function in own.values()]
        head = signature(kernel, name, aliased)
        heads.append(f"{head} MLF_HIDDEN;" if internal else f"{head};")
        texts += ["\n".join(heads), dispatcher(kernel, name, aliased, levels, own, static=False)]
    return (banner(str(unit.target)) + "\n\n".join(text.strip("\n") for text in texts) + "\n").encode()
