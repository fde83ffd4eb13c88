"""The declarations of TVM and DLPack that host functions use, and the arguments of calls of kernels."""

from __future__ import annotations

from collections.abc import Mapping

from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.constants import ConstantTable
from mlfc.support import dtypes
from mlfc.support.platforms import DEVICE_KINDS
from mlfc.tir import host
from mlfc.tir.host import CHAR, INT, INT32, INT64, UINT8, UINT16, UINT64, VOID, Body, Expr, Type, const, pointer
from mlfc.tir.ir import PrimFunc
from mlfc.tir.program import KernelCall, Value

ADDRESS, TEXT = pointer(VOID), pointer(const(CHAR))
_DEVICE = host.struct("DLDevice", device_type=INT, device_id=INT)
_DTYPE = host.struct("DLDataType", code=UINT8, bits=UINT8, lanes=UINT16)
TENSOR = host.struct(
    "DLTensor", data=ADDRESS, device=_DEVICE, ndim=INT32, dtype=_DTYPE, shape=pointer(INT64), strides=pointer(INT64),
    byte_offset=UINT64,
)  # fmt: skip
VALUE = host.struct("TVMValue", v_int64=INT64, v_handle=ADDRESS, is_union=True)
PACKED_PARAMETERS = host.names(
    args=pointer(VALUE), type_codes=pointer(INT), num_args=INT, out_ret_value=pointer(VALUE),
    out_ret_tcode=pointer(INT), resource_handle=ADDRESS,
)  # fmt: skip
"""Of a packed function."""


def _enumerator(name: str, value: int) -> host.Number:
    return host.Number(INT, value, name)


ARG_INT, OPAQUE_HANDLE, NULLPTR = map(_enumerator, ("kTVMArgInt", "kTVMOpaqueHandle", "kTVMNullptr"), (0, 3, 4))
TENSOR_HANDLE, ARRAY_HANDLE = map(_enumerator, ("kTVMDLTensorHandle", "kTVMNDArrayHandle"), (7, 13))
CPU, UINT = _enumerator("kDLCPU", 1), _enumerator("kDLUInt", 1)
DEVICES = {kind: _enumerator(f"kDL{name}", code) for kind, (code, name) in DEVICE_KINDS.items()}
# TVM represents bool as an unsigned integer of one bit; newer DLPack versions have a separate type code
CODES = {
    "int": _enumerator("kDLInt", 0), "uint": UINT, "float": _enumerator("kDLFloat", 2),
    "bfloat": _enumerator("kDLBfloat", 4), "bool": UINT,
}  # fmt: skip


def dtype_code(dtype: str) -> host.Number:
    """Return DLPack's type code of a scalar dtype."""
    kind = dtype.rstrip("0123456789")
    # as a number: older headers do not define these names
    return CODES[kind] if kind in CODES else host.Number(INT, dtypes.to_dlpack(dtype)[0])


def c_dtype(dtype: str) -> str:
    """Return the initializer of a ``DLDataType``."""
    if dtype == "bool":  # as TVM writes it; argument checks also accept the form of newer DLPack versions
        return "{kDLUInt, 1, 1}"
    return f"{{{dtype_code(dtype).text}, {dtypes.bits(dtype)}, 1}}"


set_last_error = host.declaration("TVMAPISetLastError", VOID, TEXT)
alloc_workspace = host.declaration("TVMBackendAllocWorkspace", ADDRESS, INT, INT, UINT64, INT, INT)
free_workspace = host.declaration("TVMBackendFreeWorkspace", INT, INT, INT, ADDRESS)
get_function = host.declaration("TVMBackendGetFuncFromEnv", INT, ADDRESS, TEXT, pointer(ADDRESS))
call_function = host.declaration(
    "TVMFuncCall", INT, ADDRESS, pointer(VALUE), pointer(INT), INT, pointer(VALUE), pointer(INT)
)


BYTES = pointer(UINT8)


def at(place: Expr, offset: int) -> Expr:
    """Return the address `offset` bytes after `place`."""
    return place + offset if offset else place


def constant_array(constants: ConstantTable, value: Value) -> Expr:
    """Return the array of a constant."""
    return host.Global(pointer(const(Type(scalar_type(value.dtype)))), constants.symbol(value), is_array=True)


def element_pointer(dtype: str, *, is_output: bool) -> Type:
    """Return the type of a kernel's pointer parameter for elements of a dtype."""
    name = scalar_type(dtype)
    element = UINT8 if name == UINT8.name else Type(name)
    return pointer(element if is_output else const(element))


def as_argument(place: Expr, dtype: str, *, is_output: bool) -> Expr:
    """Return an address as an argument of a kernel, cast unless C converts it implicitly."""
    wanted, own = element_pointer(dtype, is_output=is_output), element_pointer(dtype, is_output=True)
    fits = place.type.declared() in {kind.declared() for kind in (ADDRESS, wanted, own)}
    return place if fits else place.cast(wanted)


def last_arguments(variables: Mapping[str, str], kernel: PrimFunc) -> list[Expr]:
    """Return the address of the variable that a shared function gets after the pointers, if any."""
    return [host.Global(VOID, variables[kernel.name]).address] if kernel.name in variables else []


def comment_nodes(body: Body, call: KernelCall) -> None:
    """Write a comment with the model's nodes that a call computes."""
    if call.nodes:
        body.add(host.Comment(", ".join(node[:100] for node in call.nodes)[:400]))
