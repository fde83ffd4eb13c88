/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/aot_executor.h>
#include <tvm/runtime/crt/aot_executor_module.h>
#include <tvm/runtime/crt/module.h>

#include "../aot_executor/executor.h"
#include "../common/arguments.h"
#include "../common/error_text.h"
#include "../common/handles.h"
#include "../common/tensor.h"

static const DLDevice cpu = {kDLCPU, 0};

/* Functions of a module are called with its executor; without one if a caller found them in another way. */
static tvm_crt_error_t check(const TVMAotExecutor* executor, const char* function, const char* kinds, const int* codes,
                             int num_args) {
  if (executor == NULL) {
    return tvm_crt_fail(kTvmErrorExecutorModuleBadContext, "%s is called without an executor", function);
  }
  return tvm_crt_check_arguments(function, kinds, codes, num_args);
}

static int position(int64_t value) { return value >= 0 && value <= INT16_MAX ? (int)value : -1; }

/* Finds an input by name or position. */
static int find_input(TVMAotExecutor* executor, const TVMValue* arg, int code, DLTensor** tensor) {
  const int index = code == kTVMStr ? TVMAotExecutor_GetInputIndex(executor, arg->v_str) : position(arg->v_int64);
  return TVMAotExecutor_GetInput(executor, index, tensor);
}

MODULE_FUNCTION(set_input) {
  DLTensor* tensor;
  TVMAotExecutor* executor = (TVMAotExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "set_input", "kt", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const int status = find_input(executor, &args[0], codes[0], &tensor);
  return status != 0 ? status : (int)tvm_crt_copy_elements((const DLTensor*)args[1].v_handle, tensor);
}

MODULE_FUNCTION(get_input) {
  DLTensor* tensor;
  TVMAotExecutor* executor = (TVMAotExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_input", num_args == 2 ? "kt" : "k", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const int status = find_input(executor, &args[0], codes[0], &tensor);
  if (status != 0) return status;
  if (num_args == 2) return tvm_crt_copy_elements(tensor, (DLTensor*)args[1].v_handle);
  return tvm_crt_return_tensor(ret, ret_code, tensor);
}

MODULE_FUNCTION(get_output) {
  DLTensor* tensor;
  TVMAotExecutor* executor = (TVMAotExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_output", num_args == 2 ? "it" : "i", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const int status = TVMAotExecutor_GetOutput(executor, position(args[0].v_int64), &tensor);
  if (status != 0) return status;
  if (num_args == 2) return tvm_crt_copy_elements(tensor, (DLTensor*)args[1].v_handle);
  return tvm_crt_return_tensor(ret, ret_code, tensor);
}

MODULE_FUNCTION(get_num_inputs) {
  TVMAotExecutor* executor = (TVMAotExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_num_inputs", "", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  return tvm_crt_return_int(ret, ret_code, TVMAotExecutor_GetNumInputs(executor));
}

MODULE_FUNCTION(get_num_outputs) {
  TVMAotExecutor* executor = (TVMAotExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_num_outputs", "", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  return tvm_crt_return_int(ret, ret_code, TVMAotExecutor_GetNumOutputs(executor));
}

MODULE_FUNCTION(get_input_index) {
  TVMAotExecutor* executor = (TVMAotExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_input_index", "s", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  return tvm_crt_return_int(ret, ret_code, TVMAotExecutor_GetInputIndex(executor, args[0].v_str));
}

MODULE_FUNCTION(get_input_name) {
  char* name;
  TVMAotExecutor* executor = (TVMAotExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "get_input_name", "i", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const int status = TVMAotExecutor_GetInputName(executor, position(args[0].v_int64), &name);
  if (status != 0) return status;
  ret->v_str = name;
  *ret_code = kTVMStr;
  return 0;
}

MODULE_FUNCTION(run) {
  TVMAotExecutor* executor = (TVMAotExecutor*)resource_handle;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = check(executor, "run", "", codes, num_args);
  return error != kTvmErrorNoError ? (int)error : TVMAotExecutor_Run(executor);
}

/* Functions that hosts expect; not supported, because parameters are part of the code. */
MODULE_FUNCTION(not_implemented) {
  UNUSED_PARAMETERS;
  return tvm_crt_fail(kTvmErrorFunctionCallNotImplemented, "the AOT executor does not have this function");
}

static const TVMBackendPackedCFunc functions[] = {set_input,       get_input,       get_output,      get_num_inputs,
                                                  get_num_outputs, get_input_index, get_input_name,  run,
                                                  not_implemented, not_implemented, not_implemented};

static const TVMFuncRegistry registry = {"\013\000"
                                         "set_input\0"
                                         "get_input\0"
                                         "get_output\0"
                                         "get_num_inputs\0"
                                         "get_num_outputs\0"
                                         "get_input_index\0"
                                         "get_input_name\0"
                                         "run\0"
                                         "get_input_info\0"
                                         "load_params\0"
                                         "share_params\0",
                                         functions};

static const TVMModule module = {&registry};

static void release(void* object) { TVMAotExecutor_Release((TVMAotExecutor*)object, cpu); }

static bool holds(const void* object, const void* address, size_t num_bytes) {
  return aot_executor_holds((const TVMAotExecutor*)object, address, num_bytes);
}

static const ModuleMethods methods = {release, holds};

/* The global function tvm.aot_executor.create. */
MODULE_FUNCTION(create) {
  TVMAotExecutor* executor;
  UNUSED_PARAMETERS;
  tvm_crt_error_t error = tvm_crt_check_arguments("tvm.aot_executor.create", "mds", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const int status = aot_executor_create_any(args[0].v_handle, args[1].v_device, &executor, args[2].v_str);
  if (status != 0) return status;
  error = tvm_crt_module_create(&module, &methods, executor, &ret->v_handle);
  if (error != kTvmErrorNoError) {
    TVMAotExecutor_Release(executor, cpu);
    return error;
  }
  *ret_code = kTVMModuleHandle;
  return 0;
}

tvm_crt_error_t TVMAotExecutorModule_Register(void) {
  return tvm_crt_register_global("tvm.aot_executor.create", create);
}
