/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <stddef.h>
#include <tvm/runtime/crt/graph_executor_module.h>
#include <tvm/runtime/crt/module.h>

#include "../common/arguments.h"
#include "../common/error_text.h"
#include "../common/handles.h"
#include "../graph_executor/executor.h"

/* Functions of a module are called with its executor; without one if a caller found them in another way. */
static tvm_crt_error_t check(const TVMGraphExecutor* executor, const char* function, const char* kinds,
                             const int* codes, int num_args) {
  if (executor == NULL) {
    return tvm_crt_fail(kTvmErrorExecutorModuleBadContext, "%s is called without an executor", function);
  }
  return tvm_crt_check_arguments(function, kinds, codes, num_args);
}

/* Returns the index of an input, given by name or index; -1 if not found. */
static int32_t input_index(TVMGraphExecutor* executor, const TVMValue* arg, int code) {
  if (code == kTVMStr) return TVMGraphExecutor_GetInputIndex(executor, arg->v_str);
  return arg->v_int64 >= 0 && arg->v_int64 < (int64_t)executor->num_inputs ? (int32_t)arg->v_int64 : -1;
}

/* Copies, because the caller's array may be on another machine and short-lived. */
MODULE_FUNCTION(set_input) {
  TVMGraphExecutor* executor = (TVMGraphExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "set_input", "kt", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  return copy_input(executor, input_index(executor, &args[0], codes[0]), (const DLTensor*)args[1].v_handle);
}

MODULE_FUNCTION(get_input) {
  DLTensor* tensor;
  TVMGraphExecutor* executor = (TVMGraphExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_input", num_args == 2 ? "kt" : "k", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const int status = TVMGraphExecutor_GetInput(executor, input_index(executor, &args[0], codes[0]), &tensor);
  if (status != 0) return status;
  if (num_args == 2) return tvm_crt_copy_elements(tensor, (DLTensor*)args[1].v_handle);
  return tvm_crt_return_tensor(ret, ret_code, tensor);
}

MODULE_FUNCTION(get_output) {
  DLTensor view = {0};
  TVMGraphExecutor* executor = (TVMGraphExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_output", num_args == 2 ? "it" : "i", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const int64_t position = args[0].v_int64;
  const int32_t index = position >= 0 && position < (int64_t)executor->num_outputs ? (int32_t)position : -1;
  const int status = TVMGraphExecutor_GetOutput(executor, index, &view);
  if (status != 0) return status;
  DLTensor* tensor = &executor->tensors[executor->outputs[index]];
  if (num_args == 2) return tvm_crt_copy_elements(tensor, (DLTensor*)args[1].v_handle);
  return tvm_crt_return_tensor(ret, ret_code, tensor);
}

MODULE_FUNCTION(get_num_inputs) {
  TVMGraphExecutor* executor = (TVMGraphExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_num_inputs", "", codes, num_args);
  return error != kTvmErrorNoError ? error : tvm_crt_return_int(ret, ret_code, (int)executor->num_inputs);
}

MODULE_FUNCTION(get_num_outputs) {
  TVMGraphExecutor* executor = (TVMGraphExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_num_outputs", "", codes, num_args);
  return error != kTvmErrorNoError ? error : tvm_crt_return_int(ret, ret_code, (int)executor->num_outputs);
}

MODULE_FUNCTION(get_input_index) {
  TVMGraphExecutor* executor = (TVMGraphExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_input_index", "s", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  return tvm_crt_return_int(ret, ret_code, TVMGraphExecutor_GetInputIndex(executor, args[0].v_str));
}

MODULE_FUNCTION(load_params) {
  TVMGraphExecutor* executor = (TVMGraphExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "load_params", "b", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const TVMByteArray* bytes = (const TVMByteArray*)args[0].v_handle;
  if (bytes->size > UINT32_MAX) return tvm_crt_fail(kTvmErrorDataLimitExceeded, "parameters have more than 4 GiB");
  return TVMGraphExecutor_LoadParams(executor, bytes->data, (uint32_t)bytes->size);
}

MODULE_FUNCTION(run) {
  TVMGraphExecutor* executor = (TVMGraphExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "run", "", codes, num_args);
  return error != kTvmErrorNoError ? (int)error : TVMGraphExecutor_Run(executor);
}

MODULE_FUNCTION(not_implemented) {
  UNUSED_PARAMETERS;
  return tvm_crt_fail(kTvmErrorFunctionCallNotImplemented, "the C runtime does not have this function");
}

static const TVMBackendPackedCFunc functions[] = {set_input,       get_input,   get_output, get_num_inputs,
                                                  get_num_outputs, run,         load_params, get_input_index,
                                                  not_implemented, not_implemented};

static const TVMFuncRegistry registry = {"\012\000"
                                         "set_input\0"
                                         "get_input\0"
                                         "get_output\0"
                                         "get_num_inputs\0"
                                         "get_num_outputs\0"
                                         "run\0"
                                         "load_params\0"
                                         "get_input_index\0"
                                         "get_input_info\0"
                                         "share_params\0",
                                         functions};

static const TVMModule module = {&registry};

static void release(void* object) {
  TVMGraphExecutor* executor = (TVMGraphExecutor*)object;
  TVMGraphExecutor_Release(&executor);
}

static bool holds(const void* object, const void* address, size_t num_bytes) {
  return storage_holds((const TVMGraphExecutor*)object, address, num_bytes);
}

static const ModuleMethods methods = {release, holds};

/* The global function tvm.graph_executor.create. */
MODULE_FUNCTION(create) {
  TVMGraphExecutor* executor;
  UNUSED_PARAMETERS;
  tvm_crt_error_t error = tvm_crt_check_arguments("tvm.graph_executor.create", "smii", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const DLDevice device = {(DLDeviceType)args[2].v_int64, (int32_t)args[3].v_int64};
  const int status = TVMGraphExecutor_Create(args[0].v_str, args[1].v_handle, &device, &executor);
  if (status != 0) return status;
  error = tvm_crt_module_create(&module, &methods, executor, &ret->v_handle);
  if (error != kTvmErrorNoError) {
    TVMGraphExecutor_Release(&executor);
    return error;
  }
  *ret_code = kTVMModuleHandle;
  return 0;
}

tvm_crt_error_t TVMGraphExecutorModule_Register(void) {
  return tvm_crt_register_global("tvm.graph_executor.create", create);
}
