"""Emission of loop-level functions into LLVM modules."""

from __future__ import annotations

from collections.abc import Mapping

import llvmlite.ir as ll
from llvmlite import ir

from mlfc.codegen.llvm.context import INT8, INT32, POINTER, FunctionContext, Value, offset
from mlfc.codegen.llvm.expressions import ExprEmitter
from mlfc.codegen.llvm.machine import Machine
from mlfc.codegen.llvm.parallel import Parts, describe_pointer
from mlfc.codegen.llvm.statements import StmtEmitter, separate_scopes
from mlfc.codegen.operators import printed_form
from mlfc.codegen.unit import Shared, Unit
from mlfc.support.c_names import sanitize
from mlfc.tir.extents import as_index, variable
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
