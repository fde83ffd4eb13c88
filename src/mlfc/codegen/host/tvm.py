"""The declarations of TVM and DLPack that host functions use: structs, enumerators, and functions of the runtime."""

from __future__ import annotations

from mlfc.support import dtypes
from mlfc.support.platforms import DEVICE_KINDS
from mlfc.tir import host
from mlfc.tir.host import CHAR, INT, INT32, INT64, UINT8, UINT16, UINT64, VOID, const, pointer

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
