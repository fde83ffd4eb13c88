"""The function by which packed functions check tensors, in LLVM: the same checks and messages as the C's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from llvmlite import ir

from mlfc.codegen.llvm.addresses import add_to, c_function, constant_global, element, status, variable, while_loop
from mlfc.codegen.llvm.llvm_types import INT1, INT8, INT32, INT64, POINTER

ARGUMENT = ir.LiteralStructType([INT8, INT8, INT64])
"""What an argument must be: kind and bytes of an element, number of elements."""

# data, device type and number, dimensions, kind, bits and lanes of an element, shape, strides, offset in bytes
TENSOR = ir.LiteralStructType([POINTER, INT32, INT32, INT32, INT8, INT8, ir.IntType(16), POINTER, POINTER, INT64])
_DATA, _DEVICE, DEVICE_NUMBER, _DIMENSIONS, _CODE, _BITS, _LANES, _SHAPE, _STRIDES, BYTE_OFFSET = range(10)
_HANDLE_CODES = (3, 7, 13)
CPU, _UINT, _BOOL = 1, 1, 6
_MESSAGE_BYTES, _DIGITS = 200, 12
_NULL = ir.Constant(POINTER, None)


@dataclass(eq=False)
class ArgumentChecks:
    """The checks of a module, written when they are first used.

    Attributes
    ----------
    module : ir.Module
    """

    module: ir.Module

    def refuse(
        self, builder: ir.IRBuilder, function: ir.Value, text: str, number: int | ir.Value, end: str
    ) -> ir.Value:
        """Set the runtime's error to the texts with the number between the last two; return -1."""
        value = ir.Constant(INT32, number) if isinstance(number, int) else number
        return builder.call(self._refuse, [function, self.text(text), value, self.text(end)])

    def text(self, text: str) -> ir.GlobalVariable:
        """Return a string of C."""
        known = self._texts.get(text)
        if known is None:
            data = ir.Constant(ir.ArrayType(INT8, len(text.encode()) + 1), bytearray(text.encode() + b"\0"))
            known = self._texts[text] = constant_global(self.module, "text", data)
        return known

    @cached_property
    def _texts(self) -> dict[str, ir.GlobalVariable]:
        return {}

    @cached_property
    def _append(self) -> ir.Function:
        """The function that appends a text to a message as far as there is room: both lengths count from its start."""
        function = self._internal("mlf_append", [POINTER, INT32, POINTER])
        message, length, text = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        used, place = variable(builder, length), variable(builder, ir.Constant(INT32, 0))

        def unfinished() -> ir.Value:
            letter = builder.load(element(builder, text, builder.load(place), INT8), typ=INT8)
            more = builder.icmp_unsigned("!=", letter, ir.Constant(INT8, 0))
            room = builder.icmp_signed("<", builder.load(used), ir.Constant(INT32, _MESSAGE_BYTES - 1))
            return builder.and_(more, room)

        with while_loop(builder, unfinished):
            letter = builder.load(element(builder, text, builder.load(place), INT8), typ=INT8)
            builder.store(letter, element(builder, message, builder.load(used), INT8))
            add_to(builder, used, 1)
            add_to(builder, place, 1)
        builder.ret(builder.load(used))
        return function

    @cached_property
    def _refuse(self) -> ir.Function:
        function = self._internal("mlf_refuse", [POINTER, POINTER, INT32, POINTER])
        name, text, number, end = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        message = builder.alloca(INT8, size=_MESSAGE_BYTES)
        digits = builder.alloca(INT8, size=_DIGITS)
        left, place = variable(builder, number), variable(builder, ir.Constant(INT32, _DIGITS - 1))
        builder.store(ir.Constant(INT8, 0), element(builder, digits, builder.load(place), INT8))
        again = variable(builder, ir.Constant(INT1, 1))
        ten = ir.Constant(INT32, 10)
        with while_loop(builder, lambda: builder.load(again)):
            add_to(builder, place, -1)
            digit = builder.add(builder.urem(builder.load(left), ten), ir.Constant(INT32, ord("0")))
            builder.store(builder.trunc(digit, INT8), element(builder, digits, builder.load(place), INT8))
            builder.store(builder.udiv(builder.load(left), ten), left)
            builder.store(builder.icmp_unsigned("!=", builder.load(left), ir.Constant(INT32, 0)), again)
        length: ir.Value = ir.Constant(INT32, 0)
        for part in (name, text, element(builder, digits, builder.load(place), INT8), end):
            length = builder.call(self._append, [message, length, part])
        builder.store(ir.Constant(INT8, 0), element(builder, message, length, INT8))
        builder.call(c_function(self.module, "TVMAPISetLastError", [POINTER], ir.VoidType()), [message])
        builder.ret(status(-1))
        return function

    @cached_property
    def _is_compact(self) -> ir.Function:
        """The function that tells whether the strides of a tensor are those of a dense array."""
        function = self._internal("mlf_is_compact", [POINTER])
        (tensor,) = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        strides, shape = tensor_field(builder, tensor, _STRIDES), tensor_field(builder, tensor, _SHAPE)
        with builder.if_then(builder.icmp_unsigned("==", strides, _NULL)):
            builder.ret(status(1))
        stride = variable(builder, ir.Constant(INT64, 1))
        axis = variable(builder, tensor_field(builder, tensor, _DIMENSIONS))
        with while_loop(builder, lambda: builder.icmp_signed(">", builder.load(axis), ir.Constant(INT32, 0))):
            add_to(builder, axis, -1)
            extent = builder.load(element(builder, shape, builder.load(axis), INT64), typ=INT64)
            found = builder.load(element(builder, strides, builder.load(axis), INT64), typ=INT64)
            several = builder.icmp_signed("!=", extent, ir.Constant(INT64, 1))
            other = builder.icmp_signed("!=", found, builder.load(stride))
            with builder.if_then(builder.and_(several, other), likely=False):
                builder.ret(status(0))
            builder.store(builder.mul(builder.load(stride), extent), stride)
        builder.ret(status(1))
        return function

    @cached_property
    def function(self) -> ir.Function:
        """The function that checks arguments and takes the addresses of elements; any shape of the right size does.

        It takes the packed function's name, values, codes and number, what is expected, how many there are, on which
        kind of device, and where the addresses go.
        """
        function = self._internal("mlf_arguments", [POINTER, POINTER, POINTER, INT32, POINTER, INT32, INT32, POINTER])
        name, values, codes, given, expected, count, device, data = function.args
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        on_cpu = builder.icmp_signed("==", device, ir.Constant(INT32, CPU))
        with builder.if_then(builder.icmp_signed("!=", given, count), likely=False):
            builder.ret(self.refuse(builder, name, ": num_args should be ", count, ""))
        lists = [builder.icmp_unsigned("==", given, _NULL) for given in (values, codes)]
        with builder.if_then(builder.or_(*lists), likely=False):
            builder.ret(self.refuse(builder, name, ": Expect arg[", 0, "] to be pointer"))
        index = variable(builder, ir.Constant(INT32, 0))
        with while_loop(builder, lambda: builder.icmp_signed("<", builder.load(index), count)):
            now = builder.load(index)
            tensor = builder.load(element(builder, values, now, INT64), typ=POINTER)
            code = builder.load(element(builder, codes, now, INT32), typ=INT32)
            wanted = element(builder, expected, now, ARGUMENT)

            def refuse_if(fault: ir.Value, end: str, index: ir.Value = now) -> None:
                with builder.if_then(fault, likely=False):
                    start = ": Expect arg[" if end.endswith("pointer") else ": arg["
                    builder.ret(self.refuse(builder, name, start, index, end))

            is_handle = [builder.icmp_signed("==", code, ir.Constant(INT32, known)) for known in _HANDLE_CODES]
            is_tensor = builder.or_(builder.or_(is_handle[0], is_handle[1]), is_handle[2])
            is_null = builder.icmp_unsigned("==", tensor, _NULL)
            refuse_if(builder.or_(builder.not_(is_tensor), is_null), "] to be pointer")
            nbytes = self._check_tensor(builder, tensor, wanted, device, refuse_if)
            start = tensor_field(builder, tensor, BYTE_OFFSET)
            address = builder.gep(tensor_field(builder, tensor, _DATA), [start], source_etype=INT8)
            rest = builder.urem(builder.ptrtoint(address, INT64), builder.zext(nbytes, INT64))
            is_crooked = builder.icmp_unsigned("!=", rest, ir.Constant(INT64, 0))
            # where there are no elements, any place will do
            elements = builder.load(builder.gep(wanted, [status(0), status(2)], source_etype=ARGUMENT), typ=INT64)
            is_read = builder.and_(on_cpu, builder.icmp_unsigned("!=", elements, ir.Constant(INT64, 0)))
            refuse_if(builder.and_(is_read, is_crooked), "] is not aligned to its elements")
            builder.store(address, element(builder, data, now, POINTER))
            add_to(builder, index, 1)
        builder.ret(status(0))
        return function

    def _check_tensor(
        self,
        builder: ir.IRBuilder,
        tensor: ir.Value,
        wanted: ir.Value,
        device: ir.Value,
        refuse_if: Callable[[ir.Value, str], None],
    ) -> ir.Value:
        """Write the checks of one tensor; return the bytes of its elements."""
        code, nbytes, count = (
            builder.load(builder.gep(wanted, [status(0), status(field)], source_etype=ARGUMENT), typ=kind)
            for field, kind in enumerate((INT8, INT8, INT64))
        )
        shapeless = builder.icmp_unsigned("==", tensor_field(builder, tensor, _SHAPE), _NULL)
        has_axes = builder.icmp_signed(">", tensor_field(builder, tensor, _DIMENSIONS), ir.Constant(INT32, 0))
        refuse_if(builder.and_(shapeless, has_axes), "] has no shape")
        elements = self._elements(builder, tensor)
        refuse_if(builder.icmp_unsigned("!=", elements, count), "] has another number of elements")
        kind = tensor_field(builder, tensor, _CODE)
        is_bool = builder.icmp_unsigned("==", kind, ir.Constant(INT8, _BOOL))
        kind = builder.select(is_bool, ir.Constant(INT8, _UINT), kind)
        bits = builder.zext(tensor_field(builder, tensor, _BITS), INT32)
        size = builder.lshr(builder.add(bits, ir.Constant(INT32, 7)), ir.Constant(INT32, 3))
        other = builder.or_(
            builder.icmp_unsigned("!=", kind, code),
            builder.icmp_unsigned("!=", size, builder.zext(nbytes, INT32)),
        )
        lanes = tensor_field(builder, tensor, _LANES)
        refuse_if(
            builder.or_(other, builder.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 1))), "] has another dtype"
        )
        compact = builder.call(self._is_compact, [tensor])
        refuse_if(builder.icmp_signed("==", compact, status(0)), "] is expected to be a compact array")
        elsewhere = builder.icmp_signed("!=", tensor_field(builder, tensor, _DEVICE), device)
        lacking = builder.and_(
            builder.icmp_unsigned("==", tensor_field(builder, tensor, _DATA), _NULL),
            builder.icmp_unsigned("!=", elements, ir.Constant(INT64, 0)),
        )
        on_cpu = builder.icmp_signed("==", device, ir.Constant(INT32, CPU))
        missing = builder.or_(elsewhere, lacking)
        refuse_if(builder.and_(on_cpu, missing), "] is not in the memory of the CPU")
        refuse_if(missing, "] is not on the device")
        return nbytes

    def _elements(self, builder: ir.IRBuilder, tensor: ir.Value) -> ir.Value:
        """Return the product of a tensor's extents."""
        elements = variable(builder, ir.Constant(INT64, 1))
        axis = variable(builder, ir.Constant(INT32, 0))
        shape, dimensions = tensor_field(builder, tensor, _SHAPE), tensor_field(builder, tensor, _DIMENSIONS)
        with while_loop(builder, lambda: builder.icmp_signed("<", builder.load(axis), dimensions)):
            extent = builder.load(element(builder, shape, builder.load(axis), INT64), typ=INT64)
            builder.store(builder.mul(builder.load(elements), extent), elements)
            add_to(builder, axis, 1)
        return builder.load(elements)

    def _internal(self, name: str, parameters: list[ir.Type]) -> ir.Function:
        function = c_function(self.module, name, parameters)
        function.linkage = "internal"
        function.attributes.add("noinline")
        return function


def tensor_field(builder: ir.IRBuilder, tensor: ir.Value, index: int) -> ir.Value:
    """Return a field of a DLTensor."""
    place = builder.gep(tensor, [status(0), status(index)], inbounds=True, source_etype=TENSOR)
    return builder.load(place, typ=TENSOR.elements[index])
