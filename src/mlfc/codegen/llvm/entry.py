"""The ahead-of-time executor in LLVM: the functions that users call, and the one that calls a module's operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llvmlite import ir

from mlfc.codegen.c_interface import Interface, InterfaceTensor
from mlfc.codegen.llvm.addresses import at, c_function, field, leave_where_null, status
from mlfc.codegen.llvm.constants import ConstantGlobals
from mlfc.codegen.llvm.llvm_types import INT8, INT32, INT64, POINTER
from mlfc.errors import InternalError
from mlfc.executor.aot import main_function_name
from mlfc.memory import Plan, PoolSpan
from mlfc.memory.pools import POOL_ALIGNMENT, pool_array, pool_section
from mlfc.target.llvm import architecture
from mlfc.tir.ir import KernelCall, PrimFunc, Program, Value

TRACE_BEGIN, TRACE_END = "mlfc_trace_begin", "mlfc_trace_end"
# bytes of a struct that C functions return in registers, by how the name of an architecture starts
_RETURNED_IN_REGISTERS = {
    "x86_64": 16, "aarch64": 16, "arm": 4, "thumb": 4, "riscv32": 8, "riscv64": 16, "wasm32": 4, "wasm64": 8,
}  # fmt: skip
_RETURNED_ON_WINDOWS = 8
_WORD_BYTES = {"x86_64": 8, "aarch64": 8, "riscv64": 8, "wasm64": 8}


@dataclass(frozen=True, eq=False)
class LlvmExecutor:
    """The executor of one module.

    Attributes
    ----------
    program : Program
    plan : Plan
    interface : Interface
    function_names : mapping of str to str
        Name of each kernel's function.
    shared_workspace : str or None
        The array of another file that the module works in, instead of one of its own.
    traced : bool
        The main function tells ``mlfc_trace_begin`` and ``mlfc_trace_end`` of each operator.
    """

    program: Program
    plan: Plan
    interface: Interface
    function_names: Mapping[str, str]
    shared_workspace: str | None = None
    traced: bool = False

    # the main function ------------------------------------------------------------------------------------

    @property
    def main_name(self) -> str:
        """The function that calls the operators."""
        return main_function_name(self.interface.prefix)

    def declare_main(self, module: ir.Module) -> ir.Function:
        """Return the main function, without a body: it takes tensors, pools and loaded constants."""
        count = len(self._tensors) + len(self.plan.pools) + len(self.interface.constant_pools)
        return c_function(module, self.main_name, [POINTER] * count)

    def define_main(self, module: ir.Module, constants: ConstantGlobals) -> None:
        """Write the function that calls every operator at its place in the workspace."""
        main = self.declare_main(module)
        names = [*self._tensors, *(pool.name for pool in self.plan.pools)]
        names += [_Loaded(pool.name) for pool in self.interface.constant_pools]
        known = dict(zip(names, main.args, strict=True))
        builder = ir.IRBuilder(main.append_basic_block("entry"))
        for index, call in enumerate(self.program.calls):
            kernel = declare_kernel(module, call.kernel, self.function_names[call.kernel.name])
            arguments = self._arguments(builder, index, call, known, constants)
            if self.traced:
                builder.call(c_function(module, TRACE_BEGIN, [INT32], ir.VoidType()), [status(index)])
            failed = builder.icmp_signed("!=", builder.call(kernel, arguments), status(0))
            with builder.if_then(failed, likely=False):
                builder.ret(status(-1))
            if self.traced:
                end = c_function(module, TRACE_END, [INT32, POINTER, INT64], ir.VoidType())
                output = arguments[len(call.kernel.params) - 1]
                builder.call(end, [status(index), output, ir.Constant(INT64, call.output.nbytes)])
        builder.ret(status(0))

    @property
    def _tensors(self) -> tuple[Value, ...]:
        """What the caller passes, each once."""
        if self.interface.workspace_io:
            return ()
        tensors = (*self.interface.inputs, *self.interface.outputs)
        return tuple(dict.fromkeys(tensor.value.root for tensor in tensors))

    def _arguments(
        self,
        builder: ir.IRBuilder,
        index: int,
        call: KernelCall,
        known: Mapping[object, ir.Value],
        constants: ConstantGlobals,
    ) -> list[ir.Value]:
        values = (*call.inputs, *call.constants, call.output)
        arguments = [self._address(builder, value, known, constants) for value in values]
        if call.kernel.scratch:
            pool, offset = self.plan.place(self.plan.scratch_offsets[index])
            arguments.append(at(builder, known[pool.name], offset))
        return arguments

    def _address(
        self, builder: ir.IRBuilder, value: Value, known: Mapping[object, ir.Value], constants: ConstantGlobals
    ) -> ir.Value:
        root = value.root
        if root in known:
            return at(builder, known[root], value.root_start)
        if root.kind == "constant":
            loaded = constants.table.loaded_place(root)
            if loaded is not None:
                return at(builder, known[_Loaded(loaded[0])], loaded[1])
            return constants.get(root)
        if root.kind != "intermediate":
            raise InternalError(f"'{value.name}' is an {root.kind} that the module does not have")
        pool, offset = self.plan.place(self.plan.offset(value))
        return at(builder, known[pool.name], offset)

    # the functions that users call ------------------------------------------------------------------------

    def define_entry(self, module: ir.Module, *, is_elf: bool) -> None:
        """Write the workspace and the functions of the header."""
        interface = self.interface
        pools = {} if interface.external_workspace else self._own_pools(module, is_elf=is_elf)
        main = self.declare_main(module)
        structs = [] if interface.workspace_io else [interface.inputs, interface.outputs]
        entry = c_function(module, interface.entry, [POINTER] * (len(structs) + bool(interface.caller_pools)))
        builder = ir.IRBuilder(entry.append_basic_block("entry"))
        given = list(entry.args)
        taken = [argument for argument, group in zip(given, structs, strict=False) if group]
        leave_where_null(builder, [*taken, *(given[len(structs) :])])
        tensors = [
            field(builder, argument, index)
            for argument, group in zip(given, structs, strict=False)
            for index in range(len(group))
        ]
        theirs = [field(builder, given[-1], index) for index in range(len(interface.caller_pools))]
        leave_where_null(builder, [*tensors, *theirs])
        builder.ret(builder.call(main, [*tensors, *pools.values(), *theirs]))
        if interface.workspace_io:
            for function, group in zip(interface.mappers, (interface.inputs, interface.outputs), strict=True):
                self._define_mapper(module, function, group, pools)

    def _own_pools(self, module: ir.Module, *, is_elf: bool) -> dict[str, ir.GlobalVariable]:
        """Return the arrays that the module works in, by pool."""
        if self.shared_workspace:
            array = ir.GlobalVariable(module, ir.ArrayType(INT8, 0), self.shared_workspace)
            return {pool.name: array for pool in self.plan.pools}
        return {
            pool.name: workspace_array(module, pool_array(pool.name), pool, is_elf=is_elf) for pool in self.plan.pools
        }

    def _define_mapper(
        self,
        module: ir.Module,
        name: str,
        group: tuple[InterfaceTensor, ...],
        pools: Mapping[str, ir.Value],
    ) -> None:
        """Write a function that returns the struct of the places of inputs, or of outputs, in the workspace."""
        parameters = [POINTER] if self.interface.caller_pools else []
        count = max(1, len(group))
        in_registers = _returned_in_registers(module.triple, count)
        struct = ir.LiteralStructType([POINTER] * count)
        result = struct if in_registers else ir.VoidType()
        function = c_function(module, name, parameters if in_registers else [POINTER, *parameters], result)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        places = [self._mapped(builder, tensor, pools, function) for tensor in group]
        places = places or [ir.Constant(POINTER, None)]
        if in_registers:
            value: ir.Value = ir.Constant(struct, ir.Undefined)
            for index, place in enumerate(places):
                value = builder.insert_value(value, place, index)
            builder.ret(value)
            return
        for index, place in enumerate(places):
            target = builder.gep(function.args[0], [status(index)], inbounds=True, source_etype=POINTER)
            builder.store(place, target)
        builder.ret_void()
        _returned_in_memory(function, struct)

    def _mapped(
        self, builder: ir.IRBuilder, tensor: InterfaceTensor, pools: Mapping[str, ir.Value], function: ir.Function
    ) -> ir.Value:
        pool, offset = self.plan.place(self.plan.offset(tensor.value))
        if pool.name in pools:
            return at(builder, pools[pool.name], offset)
        index = list(self.interface.caller_pools).index(pool.name)
        return at(builder, field(builder, function.args[-1], index), offset)


@dataclass(frozen=True)
class _Loaded:
    """A pool of constants that the caller loads, among what the main function takes."""

    name: str


def declare_kernel(module: ir.Module, kernel: PrimFunc, name: str) -> ir.Function:
    """Return a kernel's function, declared where the module does not define it."""
    return c_function(module, name, [POINTER] * (len(kernel.params) + bool(kernel.scratch)))


def workspace_array(module: ir.Module, name: str, pool: PoolSpan, *, is_elf: bool) -> ir.GlobalVariable:
    """Return a static array to work in, for linker scripts to place."""
    array = ir.GlobalVariable(module, ir.ArrayType(INT8, pool.nbytes), name)
    array.initializer = ir.Constant(array.value_type, None)
    array.linkage = "internal"
    array.align = POOL_ALIGNMENT
    if is_elf:
        array.section = pool_section(pool.name)
    return array


def _returned_in_registers(triple: str, count: int) -> bool:
    """Tell whether C functions return a struct of `count` pointers in registers."""
    arch = architecture(triple)
    limit = next((size for start, size in _RETURNED_IN_REGISTERS.items() if arch.startswith(start)), 0)
    if "windows" in triple:
        limit = min(limit, _RETURNED_ON_WINDOWS)
    return count * _WORD_BYTES.get(arch, 4) <= limit


def _returned_in_memory(function: ir.Function, struct: ir.Type) -> None:
    """Say that the first parameter is where the caller wants the struct that the function returns."""
    place = function.args[0]
    place.type = struct.as_pointer()  # the attribute says what the pointer points to
    place.add_attribute("sret")
    place.add_attribute("noalias")
