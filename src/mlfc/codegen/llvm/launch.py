"""Host functions that launch a device's kernels, in LLVM: as `codegen.launch` has them in C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from llvmlite import ir

from mlfc.codegen.device import DeviceKernel
from mlfc.codegen.launch import launch_extents
from mlfc.codegen.llvm.addresses import (
    add_to,
    c_function,
    constant_global,
    element,
    status,
    variable,
    while_loop,
)
from mlfc.codegen.llvm.argument_checks import BYTE_OFFSET, DEVICE_NUMBER, ArgumentChecks, tensor_field
from mlfc.codegen.llvm.llvm_types import INT8, INT32, INT64, POINTER
from mlfc.codegen.llvm.packed import PARAMETERS, expected_arguments
from mlfc.support.device_types import TYPE_CODES
from mlfc.tir.ir import PrimFunc

_CONTEXT = "__tvm_module_ctx"
_SET_DEVICE = "__tvm_set_device"
# TVM's numbers of kinds of arguments
_INT, _HANDLE, _NULL = 0, 3, 4
# a function of an imported module or of the process, and the context in which it was found
_IMPORTED = ir.LiteralStructType([POINTER, POINTER])


@dataclass(eq=False)
class LaunchingFunctions:
    """Writes the packed functions of a module that launch kernels.

    Attributes
    ----------
    module : ir.Module
    checks : ArgumentChecks
    has_weak : bool
        Whether the format of objects has weak variables: the place of the loader's handle is then here unless the
        library's runtime has it, too.
    """

    module: ir.Module
    checks: ArgumentChecks
    has_weak: bool

    def define(self, prim: PrimFunc, name: str, kernels: Sequence[DeviceKernel]) -> ir.Function:
        """Write the packed function `name`, which launches the kernels of `prim` one after another.

        Its arguments are the tensors of the function's parameters, then of its scratch, all on one device.
        """
        tensors = (*prim.params, *prim.scratch)
        places = {buffer: place for place, buffer in enumerate(tensors)}
        extents = [tuple(launch_extents(kernel).values()) for kernel in kernels]
        most = max(len(kernel.arguments) + len(sizes) for kernel, sizes in zip(kernels, extents, strict=True))
        function = c_function(self.module, name, PARAMETERS)
        given_values, given_codes, given = function.args[:3]
        given.add_attribute("signext")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        data = builder.alloca(POINTER, size=len(tensors))
        values, codes = builder.alloca(INT64, size=most), builder.alloca(INT32, size=most)
        called, count = self.checks.text(name), status(len(tensors))
        device = status(TYPE_CODES[prim.device or ""])
        expected = expected_arguments(self.module, tensors)
        arguments = [called, given_values, given_codes, given, expected, count, device, data]
        _leave_on_failure(builder, builder.call(self.checks.function, arguments))
        _leave_on_failure(builder, builder.call(self._enter_device, [called, given_values, count, device]))
        for kernel, sizes in zip(kernels, extents, strict=True):
            indices = self._array(INT8, [places[buffer] for buffer in kernel.arguments])
            launched = [self.checks.text(kernel.name), self._place_of_function(), data]
            launched += [indices, status(len(kernel.arguments)), self._array(INT64, sizes), status(len(sizes))]
            _leave_on_failure(builder, builder.call(self._launch, [*launched, values, codes]))
        builder.ret(status(0))
        return function

    def _array(self, kind: ir.Type, numbers: Sequence[int]) -> ir.GlobalVariable:
        array = ir.Constant(ir.ArrayType(kind, len(numbers)), [ir.Constant(kind, number) for number in numbers])
        return constant_global(self.module, "numbers", array)

    def _place_of_function(self) -> ir.GlobalVariable:
        """Return a variable for a function that is looked up."""
        made = ir.GlobalVariable(self.module, _IMPORTED, self.module.get_unique_name("imported"))
        made.initializer, made.linkage = ir.Constant(_IMPORTED, None), "internal"
        return made

    @cached_property
    def _context(self) -> ir.GlobalVariable:
        """Where the loader of the library puts its handle; the runtime that a library carries has it, too."""
        made = ir.GlobalVariable(self.module, POINTER, _CONTEXT)
        if self.has_weak:
            made.initializer, made.linkage = ir.Constant(POINTER, None), "weak"
        return made

    @cached_property
    def _call(self) -> ir.Function:
        """The function that looks a function up by its name, where that is not done yet, and calls it."""
        function = self._internal("mlf_call", [POINTER, POINTER, POINTER, POINTER, INT32])
        name, imported, values, codes, count = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        result, code = variable(builder, ir.Constant(INT64, 0)), variable(builder, ir.Constant(INT32, _NULL))
        null = ir.Constant(POINTER, None)
        found_in = builder.gep(imported, [status(0), status(1)], inbounds=True, source_etype=_IMPORTED)
        context = builder.load(self._context, typ=POINTER)
        is_unknown = builder.icmp_unsigned("==", builder.load(imported, typ=POINTER), null)
        is_old = builder.icmp_unsigned("!=", builder.load(found_in, typ=POINTER), context)
        with builder.if_then(builder.or_(is_unknown, is_old), likely=False):
            builder.store(null, imported)
            look_up = c_function(self.module, "TVMBackendGetFuncFromEnv", [POINTER, POINTER, POINTER])
            _leave_on_failure(builder, builder.call(look_up, [context, name, imported]))
            builder.store(context, found_in)
        call = c_function(self.module, "TVMFuncCall", [POINTER, POINTER, POINTER, INT32, POINTER, POINTER])
        called = builder.load(imported, typ=POINTER)
        _leave_on_failure(builder, builder.call(call, [called, values, codes, count, result, code]))
        builder.ret(status(0))
        return function

    @cached_property
    def _enter_device(self) -> ir.Function:
        """The function that makes the device of the tensors that of the launches that follow.

        It refuses tensors on several devices, and those that do not start where their memory does: that is what a
        handle stands for.
        """
        function = self._internal("mlf_enter_device", [POINTER, POINTER, INT32, INT32])
        name, values, count, kind = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        chosen, codes = builder.alloca(INT64, size=2), builder.alloca(INT32, size=2)
        number = tensor_field(builder, builder.load(values, typ=POINTER), DEVICE_NUMBER)
        index = variable(builder, status(0))
        with while_loop(builder, lambda: builder.icmp_signed("<", builder.load(index), count)):
            now = builder.load(index)
            tensor = builder.load(element(builder, values, now, INT64), typ=POINTER)
            other = builder.icmp_signed("!=", tensor_field(builder, tensor, DEVICE_NUMBER), number)
            inside = builder.icmp_unsigned("!=", tensor_field(builder, tensor, BYTE_OFFSET), ir.Constant(INT64, 0))
            for fault, text in (
                (other, "] is on another device than arg[0]"),
                (inside, "] does not start where its memory does"),
            ):
                with builder.if_then(fault, likely=False):
                    builder.ret(self.checks.refuse(builder, name, ": arg[", now, text))
            add_to(builder, index, 1)
        for place, value in enumerate((kind, number)):
            builder.store(builder.sext(value, INT64), element(builder, chosen, status(place), INT64))
            builder.store(status(_INT), element(builder, codes, status(place), INT32))
        arguments = [self.checks.text(_SET_DEVICE), self._place_of_function(), chosen, codes, status(2)]
        builder.ret(builder.call(self._call, arguments))
        return function

    @cached_property
    def _launch(self) -> ir.Function:
        """The function that launches a kernel on some of the tensors."""
        parameters = [POINTER, POINTER, POINTER, POINTER, INT32, POINTER, INT32, POINTER, POINTER]
        function = self._internal("mlf_launch", parameters)
        name, imported, data, tensors, num_tensors, extents, num_extents, values, codes = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        index = variable(builder, status(0))
        with while_loop(builder, lambda: builder.icmp_signed("<", builder.load(index), num_tensors)):
            now = builder.load(index)
            tensor = builder.load(element(builder, tensors, now, INT8), typ=INT8)
            handle = builder.load(element(builder, data, builder.zext(tensor, INT32), POINTER), typ=POINTER)
            builder.store(builder.ptrtoint(handle, INT64), element(builder, values, now, INT64))
            builder.store(status(_HANDLE), element(builder, codes, now, INT32))
            add_to(builder, index, 1)
        extent = variable(builder, status(0))
        with while_loop(builder, lambda: builder.icmp_signed("<", builder.load(extent), num_extents)):
            now, place = builder.load(extent), builder.load(index)
            size = builder.load(element(builder, extents, now, INT64), typ=INT64)
            builder.store(size, element(builder, values, place, INT64))
            builder.store(status(_INT), element(builder, codes, place, INT32))
            add_to(builder, index, 1)
            add_to(builder, extent, 1)
        builder.ret(builder.call(self._call, [name, imported, values, codes, builder.load(index)]))
        return function

    def _internal(self, name: str, parameters: Sequence[ir.Type]) -> ir.Function:
        function = c_function(self.module, name, parameters)
        function.linkage = "internal"
        function.attributes.add("noinline")
        return function


def _leave_on_failure(builder: ir.IRBuilder, result: ir.Value) -> None:
    """Return -1 from the function unless the result of a call is 0."""
    with builder.if_then(builder.icmp_signed("!=", result, status(0)), likely=False):
        builder.ret(status(-1))
