"""What host functions take from TVM's and DLPack's headers: structs, enumerators, and functions of the runtime."""

from __future__ import annotations

from mlfc.tir.host import (
    CHAR,
    INT,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT64,
    VOID,
    Number,
    Type,
    const,
    declaration,
    names,
    pointer,
)

ADDRESS, TEXT = pointer(VOID), pointer(const(CHAR))
_DEVICE = Type("DLDevice", fields=(("device_type", INT), ("device_id", INT)))
_DTYPE = Type("DLDataType", fields=(("code", UINT8), ("bits", UINT8), ("lanes", UINT16)))
TENSOR = Type(
    "DLTensor",
    fields=(
        ("data", ADDRESS),
        ("device", _DEVICE),
        ("ndim", INT32),
        ("dtype", _DTYPE),
        ("shape", pointer(INT64)),
        ("strides", pointer(INT64)),
        ("byte_offset", UINT64),
    ),
)
VALUE = Type("TVMValue", fields=(("v_int64", INT64), ("v_handle", ADDRESS)), is_union=True)

PACKED_PARAMETERS = names(
    args=pointer(VALUE),
    type_codes=pointer(INT),
    num_args=INT,
    out_ret_value=pointer(VALUE),
    out_ret_tcode=pointer(INT),
    resource_handle=ADDRESS,
)
"""Of a packed function."""

ARG_INT, OPAQUE_HANDLE, NULLPTR = (
    Number(INT, value, f"kTVM{name}") for name, value in (("ArgInt", 0), ("OpaqueHandle", 3), ("Nullptr", 4))
)
TENSOR_HANDLE, ARRAY_HANDLE = Number(INT, 7, "kTVMDLTensorHandle"), Number(INT, 13, "kTVMNDArrayHandle")
DEVICES = {"cpu": Number(INT, 1, "kDLCPU"), "cuda": Number(INT, 2, "kDLCUDA"), "opencl": Number(INT, 4, "kDLOpenCL")}
CPU = DEVICES["cpu"]
UINT = Number(INT, 1, "kDLUInt")
# TVM's bool is an unsigned integer of one bit; newer writers have a number of their own for it
CODES = {
    "int": Number(INT, 0, "kDLInt"), "uint": UINT, "float": Number(INT, 2, "kDLFloat"),
    "bfloat": Number(INT, 4, "kDLBfloat"), "bool": UINT,
}  # fmt: skip

set_last_error = declaration("TVMAPISetLastError", VOID, TEXT)
alloc_workspace = declaration("TVMBackendAllocWorkspace", ADDRESS, INT, INT, UINT64, INT, INT)
free_workspace = declaration("TVMBackendFreeWorkspace", INT, INT, INT, ADDRESS)
get_function = declaration("TVMBackendGetFuncFromEnv", INT, ADDRESS, TEXT, pointer(ADDRESS))
call_function = declaration(
    "TVMFuncCall", INT, ADDRESS, pointer(VALUE), pointer(INT), INT, pointer(VALUE), pointer(INT)
)  # fmt: skip
