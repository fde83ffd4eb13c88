"""Kernels behind TVM's packed calling convention, and the table by which the C runtime finds them.

A packed function takes tensors, checks them, and calls the kernel, whose scratch it gets from the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.writer import Writer
from mlfc.support import dtypes
from mlfc.tir.ir import Buffer, PrimFunc

INCLUDES = ("#include <tvm/runtime/c_runtime_api.h>", "#include <tvm/runtime/c_backend_api.h>")
_HEAD = (
    "int {name}(TVMValue *args, int *type_codes, int num_args, TVMValue *out_ret_value, int *out_ret_tcode,\n"
    "           void *resource_handle)"
)
# DLPack's numbers. TVM's bool is an unsigned integer of one bit, newer writers have a number of their own for it.
_CODES = {"int": "kDLInt", "uint": "kDLUInt", "float": "kDLFloat", "bfloat": "kDLBfloat", "bool": "kDLUInt"}

CHECKS = r"""/* bool in newer DLPack: the headers of TVM have no name for it */
enum { MLF_DLPACK_BOOL = 6 };

/* what an argument must be: kind and bytes of an element, number of elements */
struct mlf_argument {
  uint8_t code;
  uint8_t bytes;
  uint64_t elements;
};

/* sets the runtime's error to the texts with the number between the last two; always -1 */
static int mlf_refuse(const char *function, const char *text, int number, const char *end) {
  char message[200], digits[12];
  const char *parts[4];
  size_t length = 0, place = sizeof digits - 1;
  digits[place] = '\0';
  do {
    digits[--place] = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0);
  parts[0] = function;
  parts[1] = text;
  parts[2] = digits + place;
  parts[3] = end;
  for (int part = 0; part < 4; ++part) {
    for (const char *at = parts[part]; *at != '\0' && length < sizeof message - 1; ++at) {
      message[length++] = *at;
    }
  }
  message[length] = '\0';
  TVMAPISetLastError(message);
  return -1;
}

static int mlf_is_compact(const DLTensor *tensor) {
  int64_t stride = 1;
  for (int32_t axis = tensor->ndim - 1; tensor->strides != NULL && axis >= 0; --axis) {
    if (tensor->shape[axis] != 1 && tensor->strides[axis] != stride) {
      return 0;
    }
    stride *= tensor->shape[axis];
  }
  return 1;
}

/* checks the arguments and takes the addresses of their elements; any shape of the right size will do */
static int mlf_arguments(const char *function, const TVMValue *args, const int *type_codes, int num_args,
                         const struct mlf_argument *expected, int count, int device_type, void **data) {
  if (num_args != count) {
    return mlf_refuse(function, ": num_args should be ", count, "");
  }
  if (args == NULL || type_codes == NULL) {
    return mlf_refuse(function, ": Expect arg[", 0, "] to be pointer");
  }
  for (int index = 0; index < count; ++index) {
    const DLTensor *tensor = (const DLTensor *)args[index].v_handle;
    const int code = type_codes[index];
    uint64_t elements = 1;
    if ((code != kTVMOpaqueHandle && code != kTVMDLTensorHandle && code != kTVMNDArrayHandle) || tensor == NULL) {
      return mlf_refuse(function, ": Expect arg[", index, "] to be pointer");
    }
    if (tensor->shape == NULL && tensor->ndim > 0) {
      return mlf_refuse(function, ": arg[", index, "] has no shape");
    }
    for (int32_t axis = 0; axis < tensor->ndim; ++axis) {
      elements *= (uint64_t)tensor->shape[axis];
    }
    if (elements != expected[index].elements) {
      return mlf_refuse(function, ": arg[", index, "] has another number of elements");
    }
    if ((tensor->dtype.code == MLF_DLPACK_BOOL ? kDLUInt : tensor->dtype.code) != expected[index].code ||
        (tensor->dtype.bits + 7) / 8 != expected[index].bytes || tensor->dtype.lanes != 1) {
      return mlf_refuse(function, ": arg[", index, "] has another dtype");
    }
    if (!mlf_is_compact(tensor)) {
      return mlf_refuse(function, ": arg[", index, "] is expected to be a compact array");
    }
    if ((int)tensor->device.device_type != device_type || (tensor->data == NULL && elements > 0)) {
      return mlf_refuse(function, ": arg[", index,
                        device_type == kDLCPU ? "] is not in the memory of the CPU" : "] is not on the device");
    }
    data[index] = (char *)tensor->data + tensor->byte_offset;
    if (device_type == kDLCPU && elements > 0 && (uintptr_t)data[index] % expected[index].bytes != 0) {
      return mlf_refuse(function, ": arg[", index, "] is not aligned to its elements");
    }
  }
  return 0;
}"""


def packed_function(prim: PrimFunc, name: str, kernel: str, values: str | None = None) -> str:
    """Return the packed function `name` that calls the C function `kernel`.

    Parameters
    ----------
    prim : PrimFunc
    name, kernel : str
    values : str, optional
        What the C function takes last, if several kernels share it.
    """
    behind = [f"&{values}"] if values else []
    count = len(prim.params)
    writer = Writer()
    with writer.block(function_head(name)):
        argument_table(writer, prim.params)
        writer.line(f"void *data[{count}];")
        if prim.scratch:
            writer.lines(["void *workspace;", "int status;"])
        writer.lines(["(void)out_ret_value;", "(void)out_ret_tcode;", "(void)resource_handle;"])
        checked = f'"{name}", args, type_codes, num_args, expected, {count}, kDLCPU, data'
        with writer.block(f"if (mlf_arguments({checked}) != 0)"):
            writer.line("return -1;")
        arguments = [_argument(buffer, index, prim) for index, buffer in enumerate(prim.params)]
        if not prim.scratch:
            writer.line(f"return {kernel}({', '.join([*arguments, *behind])});")
        else:
            arguments += ["(uint8_t *)workspace", *behind]
            _call_with_scratch(writer, prim, name, f"{kernel}({', '.join(arguments)})")
    return writer.text()


def function_head(name: str) -> str:
    """Return the head of a packed function."""
    return _HEAD.format(name=name)


def argument_table(writer: Writer, buffers: Sequence[Buffer]) -> None:
    """Write the table ``expected`` of what tensors a packed function takes."""
    with writer.block(f"static const struct mlf_argument expected[{len(buffers)}] =", "};"):
        writer.lines([f"{{{expected_argument(buffer.dtype, buffer.nbytes)}}}," for buffer in buffers])


def _call_with_scratch(writer: Writer, prim: PrimFunc, name: str, call: str) -> None:
    writer.line(f"workspace = TVMBackendAllocWorkspace(kDLCPU, 0, {prim.scratch_bytes}, kDLUInt, 8);")
    with writer.block("if (workspace == NULL)"):
        writer.line(f'return mlf_refuse("{name}", ": no memory for ", {prim.scratch_bytes}, " bytes of scratch");')
    writer.line(f"status = {call};")
    with writer.block("if (TVMBackendFreeWorkspace(kDLCPU, 0, workspace) != 0)"):
        writer.line("return -1;")
    writer.line("return status;")


def expected_argument(dtype: str, nbytes: int) -> str:
    """Return what a ``struct mlf_argument`` holds of a tensor of so many bytes."""
    element = dtypes.element(dtype)
    width = dtypes.nbytes(element)
    return f"{_CODES[element.rstrip('0123456789')]}, {width}, {nbytes // width}"


def _argument(buffer: Buffer, index: int, prim: PrimFunc) -> str:
    const = "" if buffer is prim.output else "const "
    return f"({const}{scalar_type(buffer.dtype)} *)data[{index}]"


def registry_file(names: Sequence[str], licence: str) -> str:
    """Return the file by which the C runtime finds packed functions: ``TVMSystemLibEntryPoint``.

    Parameters
    ----------
    names : sequence of str
    licence : str
        For the first line.
    """
    writer = Writer()
    writer.lines([f"/* {licence} */", "#include <tvm/runtime/crt/module.h>", ""])
    writer.lines([f"{_HEAD.format(name=name)};" for name in names])
    write_registry(writer, dict(zip(names, names, strict=True)))
    return writer.text()


def write_registry(writer: Writer, functions: Mapping[str, str]) -> None:
    """Write the table and ``TVMSystemLibEntryPoint``, of C names by the names under which hosts find functions."""
    names = list(functions)
    count = ", ".join(f"(char){part}" for part in len(names).to_bytes(2, "little"))
    writer.lines(["", "/* their number in two bytes, the low one first, then their names, each with its zero */"])
    with writer.block("static const struct", "} function_names = {"):
        writer.line("char count[2];")
        writer.lines([f"char name_{index}[{len(name) + 1}];" for index, name in enumerate(names)])
        writer.line("char end[1];")
    with writer.indented():
        writer.line(f"{{{count}}},")
        writer.lines([f'"{name}",' for name in names])
        writer.line('"",')
    writer.lines(["};", ""])
    with writer.block(f"static const TVMBackendPackedCFunc functions[{max(1, len(names))}] =", "};"):
        writer.lines([f"{symbol}," for symbol in functions.values()] or ["NULL,"])
    writer.lines(["", "static const TVMFuncRegistry registry = {(const char *)&function_names, functions};"])
    writer.lines(["static const TVMModule system_library = {&registry};", ""])
    with writer.block("const TVMModule *TVMSystemLibEntryPoint(void)"):
        writer.line("return &system_library;")
