"""Host functions that launch a device's kernels, with TVM's packed calling convention.

They look up each kernel once by name in the context that the library's loader provides, like TVM's runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.codegen.device import DeviceKernel
from mlfc.codegen.host import tvm
from mlfc.codegen.host.packed import REFUSE, checked, expected_table, mark_unused
from mlfc.support.dims import Extent
from mlfc.tir import host
from mlfc.tir.host import Body, Choice, Function, Global, Number, const, expr, names, pointer
from mlfc.tir.ir import PrimFunc

CONTEXT = Global(tvm.ADDRESS, "__tvm_module_ctx", is_weak=True)
"""The variable in which the library's loader stores its handle; the runtime linked into a library defines it, too."""

IMPORTED = host.struct("struct mlf_imported", function=tvm.ADDRESS, context=tvm.ADDRESS)
"""A function of an imported module or of the process, and the context in which it was found."""

_AXES = "xyz"
_TENSOR = pointer(const(tvm.TENSOR))


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
