"""Kernels behind TVM's packed calling convention.

A packed function takes tensors, checks them, and calls the kernel, whose scratch it gets from the runtime.
"""

from __future__ import annotations

from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.host import tvm
from mlfc.codegen.host.aot import kernel_declaration
from mlfc.codegen.host.checks import REFUSE, checked, expected_table
from mlfc.tir import host
from mlfc.tir.host import INT, NULL, UINT8, VOID, Body, Call, Function, Type, const, expr, pointer
from mlfc.tir.ir import PrimFunc

_BYTE_BITS = 8


def packed_function(prim: PrimFunc, name: str, kernel: str, values: str | None = None) -> Function:
    """Return the packed function `name` that calls the function `kernel`.

    Parameters
    ----------
    prim : PrimFunc
    name, kernel : str
    values : str, optional
        The variable whose address the function takes last, if several kernels share it.
    """
    body = Body()
    expected = expected_table(body, [(buffer.dtype, buffer.nbytes) for buffer in prim.params])
    count = len(prim.params)
    data = body.array("data", tvm.ADDRESS, count)
    arguments = []
    for index, buffer in enumerate(prim.params):
        element = Type(scalar_type(buffer.dtype))
        arguments.append(data[index].cast(pointer(element if buffer is prim.output else const(element))))
    if prim.scratch:
        workspace, status = body.declare("workspace", tvm.ADDRESS), body.declare("status", INT)
        arguments.append(workspace.cast(pointer(UINT8)))
    if values:
        arguments.append(host.Global(VOID, values).address)
    mark_unused(body)
    body.requires(checked(name, expected, count, tvm.CPU, data))
    call = kernel_declaration(kernel, len(arguments))(*arguments)
    if not prim.scratch:
        body.returns(call)
    else:
        _with_scratch(body, prim.scratch_bytes, name, workspace, status, call)
    return Function(name, INT, tvm.PACKED_PARAMETERS, body.stmts)


def mark_unused(body: Body) -> None:
    """Mark the parameters of a packed function that follow its arguments as unused."""
    body.add(*map(host.Unused, tvm.PACKED_PARAMETERS[3:]))


def packed_declaration(name: str) -> Function:
    """Return a packed function that another file defines."""
    return Function(name, INT, tvm.PACKED_PARAMETERS)


def _with_scratch(body: Body, nbytes: int, name: str, workspace: host.Name, status: host.Name, call: Call) -> None:
    body.assign(workspace, tvm.alloc_workspace(tvm.CPU, 0, nbytes, tvm.UINT, _BYTE_BITS))
    with body.where(workspace.eq(NULL)):
        body.returns(REFUSE(name, ": no memory for ", expr(nbytes), " bytes of scratch"))
    body.assign(status, call)
    body.fails_where(tvm.free_workspace(tvm.CPU, 0, workspace).ne(0))
    body.returns(status)
