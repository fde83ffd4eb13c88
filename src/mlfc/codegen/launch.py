"""Host functions that launch a device's kernels, behind TVM's packed calling convention.

The kernels are functions of a module that the library imports: a host function looks them up by name in what the
library's loader gave it, once, and calls them with the handles of the tensors and the extents of the launch. So the
runtimes of TVM can run these libraries, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.codegen.device import DeviceKernel
from mlfc.codegen.packed import argument_table, function_head
from mlfc.codegen.writer import Writer
from mlfc.tir.ir import PrimFunc

_DEVICE_TYPES = {"cuda": "kDLCUDA", "opencl": "kDLOpenCL"}
_AXES = "xyz"

LAUNCHES = r"""/* where the loader of the library puts its handle; the runtime that a library carries has it, too */
extern TVM_DLL void *__tvm_module_ctx;
#if defined(__GNUC__) && !defined(_WIN32)
__attribute__((weak)) void *__tvm_module_ctx = NULL;
#endif

/* a function of an imported module or of the process, and the context in which it was found */
struct mlf_imported {
  TVMFunctionHandle function;
  void *context;
};

static int mlf_call(const char *name, struct mlf_imported *imported, TVMValue *values, int *codes, int count) {
  TVMValue result;
  int result_code = kTVMNullptr;
  if (imported->function == NULL || imported->context != __tvm_module_ctx) {
    imported->function = NULL;
    if (TVMBackendGetFuncFromEnv(__tvm_module_ctx, name, &imported->function) != 0) {
      return -1;
    }
    imported->context = __tvm_module_ctx;
  }
  result.v_int64 = 0;
  return TVMFuncCall(imported->function, values, codes, count, &result, &result_code) != 0 ? -1 : 0;
}

/* makes the device of the tensors that of the launches that follow; a handle is of memory from its first byte on */
static int mlf_enter_device(const char *function, const TVMValue *args, int count, int device_type) {
  static struct mlf_imported set_device;
  const DLTensor *first = (const DLTensor *)args[0].v_handle;
  TVMValue values[2];
  int codes[2] = {kTVMArgInt, kTVMArgInt};
  for (int index = 0; index < count; ++index) {
    const DLTensor *tensor = (const DLTensor *)args[index].v_handle;
    if (tensor->device.device_id != first->device.device_id) {
      return mlf_refuse(function, ": arg[", index, "] is on another device than arg[0]");
    }
    if (tensor->byte_offset != 0) {
      return mlf_refuse(function, ": arg[", index, "] does not start where its memory does");
    }
  }
  values[0].v_int64 = device_type;
  values[1].v_int64 = first->device.device_id;
  return mlf_call("__tvm_set_device", &set_device, values, codes, 2);
}

/* launches a kernel on some of the tensors */
static int mlf_launch(const char *name, struct mlf_imported *kernel, void *const *data, const uint8_t *tensors,
                      int num_tensors, const int64_t *extents, int num_extents, TVMValue *values, int *codes) {
  for (int index = 0; index < num_tensors; ++index) {
    values[index].v_handle = data[tensors[index]];
    codes[index] = kTVMOpaqueHandle;
  }
  for (int index = 0; index < num_extents; ++index) {
    values[num_tensors + index].v_int64 = extents[index];
    codes[num_tensors + index] = kTVMArgInt;
  }
  return mlf_call(name, kernel, values, codes, num_tensors + num_extents);
}"""


def launch_extents(kernel: DeviceKernel) -> Mapping[str, int]:
    """Return what follows a kernel's arguments in a call: the extents of its launch by their tags, in order."""
    sizes = tuple(zip(kernel.grid, kernel.block, strict=True))
    used = 1 + max((axis for axis, pair in enumerate(sizes) if pair != (1, 1)), default=0)
    blocks = {f"blockIdx.{_AXES[axis]}": kernel.grid[axis] for axis in range(used)}
    return blocks | {f"threadIdx.{_AXES[axis]}": kernel.block[axis] for axis in range(used)}


def launching_function(prim: PrimFunc, name: str, kernels: Sequence[DeviceKernel]) -> str:
    """Return the packed function `name`, which launches the kernels of `prim` one after another.

    Its arguments are the tensors of the function's parameters, then of its scratch, all on one device.
    """
    tensors = (*prim.params, *prim.scratch)
    places = {buffer: place for place, buffer in enumerate(tensors)}
    extents = [launch_extents(kernel) for kernel in kernels]
    most = max(len(kernel.arguments) + len(ext) for kernel, ext in zip(kernels, extents, strict=True))
    device_type = _DEVICE_TYPES[prim.device or ""]
    count = len(tensors)
    writer = Writer()
    with writer.block(function_head(name)):
        argument_table(writer, tensors)
        for number, kernel in enumerate(kernels):
            arguments = ", ".join(str(places[buffer]) for buffer in kernel.arguments)
            writer.line(f"static const uint8_t tensors_{number}[{len(kernel.arguments)}] = {{{arguments}}};")
            sizes = ", ".join(map(str, extents[number].values()))
            writer.line(f"static const int64_t extents_{number}[{len(extents[number])}] = {{{sizes}}};")
        writer.line(f"static struct mlf_imported kernels[{len(kernels)}];")
        writer.lines([f"void *data[{count}];", f"TVMValue values[{most}];", f"int codes[{most}];"])
        writer.lines(["(void)out_ret_value;", "(void)out_ret_tcode;", "(void)resource_handle;"])
        arguments = f'"{name}", args, type_codes, num_args,\n                    expected, {count}, {device_type}, data'
        checks = [f"mlf_arguments({arguments})", f'mlf_enter_device("{name}", args, {count}, {device_type})']
        launches = [
            f'mlf_launch("{kernel.name}", &kernels[{number}], data,\n'
            f"                 tensors_{number}, {len(kernel.arguments)}, extents_{number}, {len(extents[number])}, "
            "values, codes)"
            for number, kernel in enumerate(kernels)
        ]
        for call in [*checks, *launches]:
            with writer.block(f"if ({call} != 0)"):
                writer.line("return -1;")
        writer.line("return 0;")
    return writer.text()
