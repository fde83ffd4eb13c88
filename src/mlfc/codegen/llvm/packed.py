"""Kernels behind TVM's packed calling convention, and the table of them, in LLVM: as `codegen.packed` has them in C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from mlfc.codegen.llvm.addresses import c_function, constant_global, status
from mlfc.codegen.llvm.argument_checks import ARGUMENT, CPU, ArgumentChecks
from mlfc.codegen.llvm.llvm_types import INT8, INT32, INT64, POINTER
from mlfc.support import dtypes
from mlfc.tir.ir import Buffer, PrimFunc

_UINT, _BYTE_BITS = 1, 8
PARAMETERS = (POINTER, POINTER, INT32, POINTER, POINTER, POINTER)
"""Of a packed function: values, codes and number of arguments, value and code of the result, a handle."""
_COUNT_BYTES = 2
# DLPack's numbers. TVM's bool is an unsigned integer of one bit.
_CODES = {"int": 0, "uint": _UINT, "float": 2, "bfloat": 4, "bool": _UINT}


@dataclass(eq=False)
class PackedFunctions:
    """Writes the packed functions of a module.

    Attributes
    ----------
    module : ir.Module
    checks : ArgumentChecks
    """

    module: ir.Module
    checks: ArgumentChecks

    def define(self, prim: PrimFunc, name: str, kernel: ir.Function) -> ir.Function:
        """Write the packed function `name`, which checks its arguments and calls a kernel."""
        function = c_function(self.module, name, PARAMETERS)
        values, codes, given = function.args[:3]
        given.add_attribute("signext")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        count = len(prim.params)
        data = builder.alloca(POINTER, size=count)
        called = self.checks.text(name)
        expected = expected_arguments(self.module, prim.params)
        device = ir.Constant(INT32, CPU)
        result = builder.call(
            self.checks.function, [called, values, codes, given, expected, ir.Constant(INT32, count), device, data]
        )
        with builder.if_then(builder.icmp_signed("!=", result, status(0)), likely=False):
            builder.ret(status(-1))
        arguments = [
            builder.load(builder.gep(data, [ir.Constant(INT32, index)], source_etype=POINTER), typ=POINTER)
            for index in range(count)
        ]
        if prim.scratch:
            self._call_with_scratch(builder, prim, called, kernel, arguments)
        else:
            builder.ret(builder.call(kernel, arguments))
        return function

    def _call_with_scratch(
        self, builder: ir.IRBuilder, prim: PrimFunc, called: ir.Value, kernel: ir.Function, arguments: list[ir.Value]
    ) -> None:
        allocate = c_function(self.module, "TVMBackendAllocWorkspace", [INT32, INT32, INT64, INT32, INT32], POINTER)
        free = c_function(self.module, "TVMBackendFreeWorkspace", [INT32, INT32, POINTER])
        device, nbytes = [ir.Constant(INT32, CPU), ir.Constant(INT32, 0)], prim.scratch_bytes
        hint = [ir.Constant(INT32, _UINT), ir.Constant(INT32, _BYTE_BITS)]
        workspace = builder.call(allocate, [*device, ir.Constant(INT64, nbytes), *hint])
        is_null = builder.icmp_unsigned("==", workspace, ir.Constant(POINTER, None))
        with builder.if_then(is_null, likely=False):
            builder.ret(self.checks.refuse(builder, called, ": no memory for ", nbytes, " bytes of scratch"))
        result = builder.call(kernel, [*arguments, workspace])
        failed = builder.icmp_signed("!=", builder.call(free, [*device, workspace]), status(0))
        builder.ret(builder.select(failed, status(-1), result))


def expected_arguments(module: ir.Module, buffers: Sequence[Buffer]) -> ir.GlobalVariable:
    """Return the array of what each argument must be."""
    entries = [ir.Constant(ARGUMENT, [ir.Constant(*part) for part in _expected(buffer)]) for buffer in buffers]
    array = ir.Constant(ir.ArrayType(ARGUMENT, len(entries)), entries)
    return constant_global(module, "expected", array)


def _expected(buffer: Buffer) -> tuple[tuple[ir.Type, int], ...]:
    element = dtypes.element(buffer.dtype)
    nbytes = dtypes.nbytes(element)
    return (INT8, _CODES[element.rstrip("0123456789")]), (INT8, nbytes), (INT64, buffer.nbytes // nbytes)


def define_registry(module: ir.Module, names: Sequence[str]) -> None:
    """Write the table by which the C runtime finds packed functions: ``TVMSystemLibEntryPoint``."""
    # their number in two bytes, the low one first, then their names, each with its zero
    text = len(names).to_bytes(_COUNT_BYTES, "little") + b"".join(name.encode() + b"\0" for name in names) + b"\0"
    functions = [c_function(module, name, PARAMETERS) for name in names] or [ir.Constant(POINTER, None)]
    table = ir.Constant(ir.ArrayType(POINTER, len(functions)), functions)
    names_text = ir.Constant(ir.ArrayType(INT8, len(text)), bytearray(text))
    parts = [constant_global(module, "function_names", names_text), constant_global(module, "functions", table)]
    registry = constant_global(module, "registry", ir.Constant.literal_struct(parts))
    library = constant_global(module, "system_library", ir.Constant.literal_struct([registry]))
    entry = c_function(module, "TVMSystemLibEntryPoint", [], POINTER)
    ir.IRBuilder(entry.append_basic_block("entry")).ret(library)
