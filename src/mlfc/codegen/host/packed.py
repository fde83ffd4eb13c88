"""Packed functions in TVM's calling convention: of kernels of the host, and those that launch a device's kernels.

The latter look up each kernel once by name in the context that the library's loader provides, like TVM's runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.codegen.device import DeviceKernel
from mlfc.codegen.host import tvm
from mlfc.codegen.host.tvm import element_pointer
from mlfc.support import dtypes
from mlfc.support.dims import Extent
from mlfc.tir import host
from mlfc.tir.host import (
    INT,
    NULL,
    UINT8,
    Body,
    Choice,
    Expr,
    Function,
    Global,
    Name,
    Number,
    const,
    expr,
    names,
    pointer,
)
from mlfc.tir.ir import PrimFunc

ARGUMENT = host.struct("struct mlf_argument", code=host.UINT8, bytes=host.UINT8, elements=host.UINT64)
"""The checked properties of an argument: type code and bytes of an element, number of elements."""

BOOL_CODE = Number(host.INT, 6, "MLF_DLPACK_BOOL")
_TENSOR = pointer(const(tvm.TENSOR))
_MESSAGE_BYTES, _DIGITS = 200, 12


_BYTE_BITS = 8


def _refuse() -> Function:
    body = Body()
    parameters = names(function=tvm.TEXT, text=tvm.TEXT, number=host.INT, end=tvm.TEXT)
    function, text, number, end = parameters
    message, digits = body.array("message", host.CHAR, _MESSAGE_BYTES), body.array("digits", host.CHAR, _DIGITS)
    parts = body.array("parts", tvm.TEXT, 4)
    length = body.declare("length", host.SIZE, 0)
    place = body.declare("place", host.SIZE, Number(host.SIZE, _DIGITS - 1, "sizeof digits - 1"))
    zero = Number(host.CHAR, 0, r"'\0'")
    body.assign(digits[place], zero)
    with body.repeat_while(number > 0):
        body.assign(place, 1, "-")
        body.assign(digits[place], (Number(host.INT, ord("0"), "'0'") + number % 10).cast(host.CHAR))
        body.assign(number, 10, "/")
    for index, part in enumerate((function, text, digits + place, end)):
        body.assign(parts[index], part)
    with body.loop("part", 4) as part:
        at = Name(tvm.TEXT, "at")
        room = length < Number(host.SIZE, _MESSAGE_BYTES - 1, "sizeof message - 1")
        with body.counting(at, parts[part], at[0].ne(zero) & room):
            body.assign(message[length], at[0])
            body.assign(length, 1, "+")
    body.assign(message[length], zero)
    body.evaluate(tvm.set_last_error(message))
    body.returns(-1)
    comment = "sets the runtime's error to the texts with the number between the last two; always -1"
    return Function("mlf_refuse", host.INT, parameters, body.stmts, is_static=True, comment=comment)


def _is_compact() -> Function:
    body = Body()
    (tensor,) = parameters = names(tensor=_TENSOR)
    stride = body.declare("stride", host.INT64, 1)
    axis = Name(host.INT32, "axis")
    with body.counting(axis, tensor["ndim"] - 1, tensor["strides"].ne(host.NULL) & (axis >= 0), -1):
        with body.where(tensor["shape"][axis].ne(1) & tensor["strides"][axis].ne(stride)):
            body.returns(0)
        body.assign(stride, tensor["shape"][axis], "*")
    body.returns(1)
    return Function("mlf_is_compact", host.INT, parameters, body.stmts, is_static=True)


def _arguments() -> Function:
    body = Body()
    parameters = names(
        function=tvm.TEXT, args=pointer(const(tvm.VALUE)), type_codes=pointer(const(host.INT)), num_args=host.INT,
        expected=pointer(const(ARGUMENT)), count=host.INT, device_type=host.INT, data=pointer(tvm.ADDRESS),
    )  # fmt: skip
    function, args, type_codes, num_args, expected, count, device_type, data = parameters

    def refuse_where(fault: Expr, *message: host.Operand) -> None:
        with body.where(fault):
            body.returns(REFUSE(function, *message))

    no_pointer = "] to be pointer"
    refuse_where(num_args.ne(count), ": num_args should be ", count, "")
    refuse_where(args.eq(host.NULL) | type_codes.eq(host.NULL), ": Expect arg[", 0, no_pointer)
    with body.loop("index", count) as index:
        tensor = body.declare("tensor", _TENSOR, args[index]["v_handle"].cast(_TENSOR))
        code = body.declare("code", const(host.INT), type_codes[index])
        elements = body.declare("elements", host.UINT64, 1)
        kinds = (tvm.OPAQUE_HANDLE, tvm.TENSOR_HANDLE, tvm.ARRAY_HANDLE)
        is_other = code.ne(kinds[0]) & code.ne(kinds[1]) & code.ne(kinds[2])
        refuse_where(is_other | tensor.eq(host.NULL), ": Expect arg[", index, no_pointer)
        refuse_where(tensor["shape"].eq(host.NULL) & (tensor["ndim"] > 0), ": arg[", index, "] has no shape")
        axis = Name(host.INT32, "axis")
        with body.counting(axis, 0, axis < tensor["ndim"]):
            body.assign(elements, tensor["shape"][axis].cast(host.UINT64), "*")
        wanted, dtype = expected[index], tensor["dtype"]
        refuse_where(elements.ne(wanted["elements"]), ": arg[", index, "] has another number of elements")
        found = Choice(host.INT, dtype["code"].eq(BOOL_CODE), tvm.UINT, dtype["code"])
        other = found.ne(wanted["code"]) | ((dtype["bits"] + 7) // 8).ne(wanted["bytes"]) | dtype["lanes"].ne(1)
        refuse_where(other, ": arg[", index, "] has another dtype")
        refuse_where(IS_COMPACT(tensor).eq(0), ": arg[", index, "] is expected to be a compact array")
        missing = tensor["data"].eq(host.NULL) & (elements > 0)
        elsewhere = Choice(
            tvm.TEXT, device_type.eq(tvm.CPU), expr("] is not in the memory of the CPU"), expr("] is not on the device")
        )
        is_elsewhere = tensor["device"]["device_type"].cast(host.INT).ne(device_type)
        refuse_where(is_elsewhere | missing, ": arg[", index, elsewhere)
        body.assign(data[index], tensor["data"].cast(pointer(host.CHAR)) + tensor["byte_offset"])
        is_crooked = (data[index].cast(host.UINTPTR) % wanted["bytes"]).ne(0)
        is_read = device_type.eq(tvm.CPU) & (elements > 0)
        refuse_where(is_read & is_crooked, ": arg[", index, "] is not aligned to its elements")
    body.returns(0)
    comment = "checks the arguments and takes the addresses of their elements; any shape of the right size will do"
    return Function("mlf_arguments", host.INT, parameters, body.stmts, is_static=True, comment=comment)


REFUSE, IS_COMPACT = _refuse(), _is_compact()
ARGUMENTS = _arguments()
CHECKS = (REFUSE, IS_COMPACT, ARGUMENTS)


def checked(name: str, expected: Expr, count: int, device: Number, data: Expr) -> host.Call:
    """Return the call that checks number, dtypes, shapes and device of the arguments of packed function `name`."""
    return ARGUMENTS(name, *tvm.PACKED_PARAMETERS[:3], expected, count, device, data)


def expected_table(body: Body, tensors: Sequence[tuple[str, int]]) -> Name:
    """Add the table ``expected`` of a packed function's tensors, given as dtype and size in bytes."""
    rows: list[tuple[Expr, ...]] = []
    for dtype, nbytes in tensors:
        element = dtypes.element(dtype)
        width = dtypes.nbytes(element)
        rows.append((tvm.dtype_code(element), expr(width), Number(host.UINT64, nbytes // width)))
    return body.table("expected", ARGUMENT, rows)


def packed_function(prim: PrimFunc, name: str, kernel: str, values: str | None = None) -> Function:
    """Return the packed function `name` that calls the function `kernel`.

    If several kernels share that function, `values` is the variable whose address is its last argument.
    """
    body = Body()
    expected = expected_table(body, [(buffer.holds or buffer.dtype, buffer.nbytes) for buffer in prim.params])
    count = len(prim.params)
    data = body.array("data", tvm.ADDRESS, count)
    arguments = []
    for index, buffer in enumerate(prim.params):
        arguments.append(data[index].cast(element_pointer(buffer.dtype, is_output=buffer is prim.output)))
    if prim.scratch:
        workspace, status = body.declare("workspace", tvm.ADDRESS), body.declare("status", INT)
        arguments.append(workspace.cast(pointer(UINT8)))
    if values:
        arguments.append(host.Global(host.VOID, values).address)
    mark_unused(body)
    body.requires(checked(name, expected, count, tvm.CPU, data))
    call = host.declaration(kernel, host.INT32, *[tvm.ADDRESS] * len(arguments))(*arguments)
    if not prim.scratch:
        body.returns(call)
    else:
        nbytes = prim.scratch_bytes
        body.assign(workspace, tvm.alloc_workspace(tvm.CPU, 0, nbytes, tvm.UINT, _BYTE_BITS))
        with body.where(workspace.eq(NULL)):
            body.returns(REFUSE(name, ": no memory for ", expr(nbytes), " bytes of scratch"))
        body.assign(status, call)
        body.fails_where(tvm.free_workspace(tvm.CPU, 0, workspace).ne(0))
        body.returns(status)
    return Function(name, INT, tvm.PACKED_PARAMETERS, body.stmts)


def mark_unused(body: Body) -> None:
    """Mark the parameters of a packed function that follow its arguments as unused."""
    body.add(*map(host.Unused, tvm.PACKED_PARAMETERS[3:]))


CONTEXT = Global(tvm.ADDRESS, "__tvm_module_ctx", is_weak=True)
"""The variable in which the library's loader stores its handle; the runtime linked into a library defines it, too."""

IMPORTED = host.struct("struct mlf_imported", function=tvm.ADDRESS, context=tvm.ADDRESS)
"""A function of an imported module or of the process, and the context in which it was found."""

_AXES = "xyz"


def _call() -> Function:
    body = Body()
    parameters = names(
        name=tvm.TEXT, imported=pointer(IMPORTED), values=pointer(tvm.VALUE), codes=pointer(host.INT), count=host.INT
    )
    name, imported, values, codes, count = parameters
    result = body.declare("result", tvm.VALUE)
    result_code = body.declare("result_code", host.INT, tvm.NULLPTR)
    function, context = imported["function"], imported["context"]
    with body.where(function.eq(host.NULL) | context.ne(CONTEXT)):
        body.assign(function, host.NULL)
        body.requires(tvm.get_function(CONTEXT, name, function.address))
        body.assign(context, CONTEXT)
    body.assign(result["v_int64"], 0)
    called = tvm.call_function(function, values, codes, count, result.address, result_code.address)
    body.returns(Choice(host.INT, called.ne(0), expr(-1), expr(0)))
    return Function("mlf_call", host.INT, parameters, body.stmts, is_static=True)


def _enter_device() -> Function:
    body = Body()
    parameters = names(function=tvm.TEXT, args=pointer(const(tvm.VALUE)), count=host.INT, device_type=host.INT)
    function, args, count, device_type = parameters
    set_device = body.table("set_device", IMPORTED, count=1)
    first = body.declare("first", _TENSOR, args[0]["v_handle"].cast(_TENSOR))
    values, codes = body.array("values", tvm.VALUE, 2), body.array("codes", host.INT, 2)
    number = first["device"]["device_id"]
    with body.loop("index", count) as index:
        tensor = body.declare("tensor", _TENSOR, args[index]["v_handle"].cast(_TENSOR))
        with body.where(tensor["device"]["device_id"].ne(number)):
            body.returns(REFUSE(function, ": arg[", index, "] is on another device than arg[0]"))
        with body.where(tensor["byte_offset"].ne(0)):
            body.returns(REFUSE(function, ": arg[", index, "] does not start where its memory does"))
    for place, value in enumerate((device_type, number)):
        body.assign(values[place]["v_int64"], value)
        body.assign(codes[place], tvm.ARG_INT)
    body.returns(CALL("__tvm_set_device", set_device, values, codes, 2))
    comment = (
        "makes the device of the tensors that of the launches that follow; a handle is of memory from its first byte on"
    )
    return Function("mlf_enter_device", host.INT, parameters, body.stmts, is_static=True, comment=comment)


def _launch() -> Function:
    body = Body()
    parameters = names(
        name=tvm.TEXT, kernel=pointer(IMPORTED), data=pointer(const(tvm.ADDRESS)), tensors=pointer(const(host.UINT8)),
        num_tensors=host.INT, extents=pointer(const(host.INT64)), num_extents=host.INT, values=pointer(tvm.VALUE),
        codes=pointer(host.INT),
    )  # fmt: skip
    name, kernel, data, tensors, num_tensors, extents, num_extents, values, codes = parameters
    with body.loop("index", num_tensors) as index:
        body.assign(values[index]["v_handle"], data[tensors[index]])
        body.assign(codes[index], tvm.OPAQUE_HANDLE)
    with body.loop("index", num_extents) as index:
        body.assign(values[num_tensors + index]["v_int64"], extents[index])
        body.assign(codes[num_tensors + index], tvm.ARG_INT)
    body.returns(CALL(name, kernel, values, codes, num_tensors + num_extents))
    comment = "launches a kernel on some of the tensors"
    return Function("mlf_launch", host.INT, parameters, body.stmts, is_static=True, comment=comment)


CALL = _call()
ENTER_DEVICE, LAUNCH = _enter_device(), _launch()
LAUNCHES = (CALL, ENTER_DEVICE, LAUNCH)


def launch_extents(kernel: DeviceKernel) -> Mapping[str, Extent]:
    """Return the launch dimensions of a kernel by their tags, in the order in which they follow its arguments."""
    sizes = tuple(zip(kernel.grid, kernel.block, strict=True))
    used = 1 + max((axis for axis, pair in enumerate(sizes) if pair != (1, 1)), default=0)
    blocks = {f"blockIdx.{_AXES[axis]}": kernel.grid[axis] for axis in range(used)}
    return blocks | {f"threadIdx.{_AXES[axis]}": kernel.block[axis] for axis in range(used)}


def launching_function(prim: PrimFunc, name: str, kernels: Sequence[DeviceKernel]) -> Function:
    """Return the packed function `name`, which launches the kernels of `prim` in order.

    Its arguments are the tensors of the function's parameters, then of its scratch, all on one device.
    """
    buffers = (*prim.params, *prim.scratch)
    places = {buffer: place for place, buffer in enumerate(buffers)}
    extents = [[int(extent) for extent in launch_extents(kernel).values()] for kernel in kernels]  # type: ignore[arg-type]  # the graph executor's are known
    most = max(len(kernel.arguments) + len(sizes) for kernel, sizes in zip(kernels, extents, strict=True))
    device, count = tvm.DEVICES[prim.device or ""], len(buffers)
    body = Body()
    expected = expected_table(body, [(buffer.holds or buffer.dtype, buffer.nbytes) for buffer in buffers])
    tables = []
    for number, kernel in enumerate(kernels):
        tensors = [Number(host.UINT8, places[buffer]) for buffer in kernel.arguments]
        sizes = [Number(host.INT64, size) for size in extents[number]]
        chosen = body.table(f"tensors_{number}", host.UINT8, tensors)
        tables.append((chosen, body.table(f"extents_{number}", host.INT64, sizes)))
    imported = body.table("kernels", IMPORTED, count=len(kernels))
    data = body.array("data", tvm.ADDRESS, count)
    values, codes = body.array("values", tvm.VALUE, most), body.array("codes", host.INT, most)
    mark_unused(body)
    body.requires(checked(name, expected, count, device, data))
    body.requires(ENTER_DEVICE(name, tvm.PACKED_PARAMETERS[0], count, device))
    for number, (kernel, (chosen, lengths)) in enumerate(zip(kernels, tables, strict=True)):
        what = (chosen, len(kernel.arguments), lengths, len(extents[number]))
        body.requires(LAUNCH(kernel.name, imported[number].address, data, *what, values, codes))
    body.returns(0)
    return Function(name, host.INT, tvm.PACKED_PARAMETERS, body.stmts)
