/* Runs a module with the packed AOT interface and tables as TVM writes them, by the executor and by its module. */
#include <string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/aot_executor.h>
#include <tvm/runtime/crt/aot_executor_module.h>
#include <tvm/runtime/crt/crt.h>
#include <tvm/runtime/crt/module.h>
#include <tvm/runtime/metadata_types.h>

#include "crt_config.h"
#include "require.h"

static const int64_t kTvmgenMetadata_shape[] = {2, 2};
static const TVMTensorInfo kTvmgenMetadata_inputs[] = {{"left", kTvmgenMetadata_shape, 2, {kDLFloat, 32, 1}},
                                                       {"right_0", kTvmgenMetadata_shape, 2, {kDLFloat, 32, 1}}};
static const TVMTensorInfo kTvmgenMetadata_outputs[] = {{"output0", kTvmgenMetadata_shape, 2, {kDLFloat, 32, 1}}};
static TVMMetadata kTvmgenMetadata = {1, kTvmgenMetadata_inputs, 2, kTvmgenMetadata_outputs, 1, NULL, 0,
                                      NULL, 0, "tvmgen_default"};

static int32_t tvmgen_default_get_c_metadata(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code,
                                             void* resource) {
  (void)args;
  (void)codes;
  (void)num_args;
  (void)resource;
  ret->v_handle = &kTvmgenMetadata;
  *ret_code = kTVMOpaqueHandle;
  return 0;
}

static int32_t tvmgen_default_run(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code,
                                  void* resource) {
  (void)ret;
  (void)ret_code;
  (void)resource;
  REQUIRE(num_args == 3 && codes[2] == kTVMNDArrayHandle);
  const float* left = (const float*)((DLTensor*)args[0].v_handle)->data;
  const float* right = (const float*)((DLTensor*)args[1].v_handle)->data;
  float* output = (float*)((DLTensor*)args[2].v_handle)->data;
  for (int i = 0; i < 4; ++i) output[i] = left[i] - right[i];
  return 0;
}

static const TVMBackendPackedCFunc _tvm_func_array[] = {(TVMBackendPackedCFunc)tvmgen_default_run,
                                                        (TVMBackendPackedCFunc)tvmgen_default_get_c_metadata};
static const TVMFuncRegistry _tvm_func_registry = {"\002\000tvmgen_default_run\000tvmgen_default_get_c_metadata\000",
                                                   _tvm_func_array};
static const TVMModule _tvm_system_lib = {&_tvm_func_registry};

const TVMModule* TVMSystemLibEntryPoint(void) { return &_tvm_system_lib; }

static const DLDevice cpu = {kDLCPU, 0};

static void check_executor(TVMModuleHandle library) {
  TVMAotExecutor* executor;
  DLTensor* left;
  DLTensor* right;
  DLTensor* output;
  char* name;
  REQUIRE(TVMAotExecutor_Create(library, cpu, &executor, "other") == kTvmErrorFunctionNameNotFound);
  REQUIRE(strstr(TVMGetLastError(), "tvmgen_other_get_c_metadata") != NULL && executor == NULL);
  kTvmgenMetadata.version = 2;
  REQUIRE(TVMAotExecutor_Create(library, cpu, &executor, "default") == kTvmErrorExecutorModuleBadContext);
  kTvmgenMetadata.version = 1;
  REQUIRE(TVMAotExecutor_Create(library, cpu, &executor, "default") == 0);
  REQUIRE(TVMAotExecutor_GetNumInputs(executor) == 2 && TVMAotExecutor_GetNumOutputs(executor) == 1);
  REQUIRE(TVMAotExecutor_GetInputIndex(executor, "right_0") == 1);
  REQUIRE(TVMAotExecutor_GetInputIndex(executor, "right:0") == 1); /* the name as the model may spell it */
  REQUIRE(TVMAotExecutor_GetInputIndex(executor, "right00") == -1);
  REQUIRE(TVMAotExecutor_GetInputIndex(executor, "right:") == -1);
  REQUIRE(TVMAotExecutor_GetInputIndex(executor, "right:01") == -1);
  REQUIRE(TVMAotExecutor_GetInputIndex(executor, "output0") == -1);
  REQUIRE(TVMAotExecutor_GetInputName(executor, 0, &name) == 0 && strcmp(name, "left") == 0);
  REQUIRE(TVMAotExecutor_GetInputName(executor, 2, &name) == kTvmErrorExecutorModuleNoSuchInput);
  REQUIRE(TVMAotExecutor_GetInput(executor, 0, &left) == 0 && TVMAotExecutor_GetInput(executor, 1, &right) == 0);
  REQUIRE(TVMAotExecutor_GetOutput(executor, 0, &output) == 0 && output->shape[1] == 2 && output->ndim == 2);
  REQUIRE(TVMAotExecutor_GetOutput(executor, 1, &output) != 0);
  REQUIRE(TVMAotExecutor_GetOutput(executor, 0, &output) == 0);
  for (int i = 0; i < 4; ++i) {
    ((float*)left->data)[i] = (float)(10 * i);
    ((float*)right->data)[i] = (float)i;
  }
  REQUIRE(TVMAotExecutor_Run(executor) == 0 && ((float*)output->data)[3] == 27.0f);
  REQUIRE(TVMAotExecutor_Release(executor, cpu) == 0);
}

static TVMValue call(TVMModuleHandle module, const char* name, TVMValue* args, int* codes, int count) {
  TVMFunctionHandle function;
  TVMValue result;
  int code;
  REQUIRE((module == NULL ? TVMFuncGetGlobal(name, &function) : TVMModGetFunction(module, name, 0, &function)) == 0);
  REQUIRE(TVMFuncCall(function, args, codes, count, &result, &code) == 0);
  return result;
}

/* Creates an executor module the way a host does. */
static TVMModuleHandle create(TVMModuleHandle library, const char* name) {
  TVMValue args[3];
  int codes[] = {kTVMModuleHandle, kDLDevice, kTVMStr};
  args[0].v_handle = library;
  args[1].v_device = cpu;
  args[2].v_str = name;
  return call(NULL, "tvm.aot_executor.create", args, codes, 3).v_handle;
}

/* Sets the left input of a module to four values, runs it, and returns its output. */
static const float* run_with(TVMModuleHandle module, float* values) {
  static const int no_codes[1] = {0};
  int64_t shape[] = {2, 2};
  DLTensor tensor = {values, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
  TVMValue args[2];
  int set_codes[] = {kTVMStr, kTVMDLTensorHandle};
  int get_codes[] = {kTVMArgInt};
  args[0].v_str = "left";
  args[1].v_handle = &tensor;
  call(module, "set_input", args, set_codes, 2);
  call(module, "run", NULL, (int*)no_codes, 0);
  args[0].v_int64 = 0;
  REQUIRE(strcmp(call(module, "get_input_name", args, get_codes, 1).v_str, "left") == 0);
  return (const float*)((const DLTensor*)call(module, "get_output", args, get_codes, 1).v_handle)->data;
}

static void check_modules(TVMModuleHandle library) {
  float values[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  TVMFunctionHandle function;
  TVMValue args[3];
  TVMValue result;
  int codes[] = {kTVMModuleHandle, kTVMArgInt, kTVMStr};
  int code;
  REQUIRE(TVMAotExecutorModule_Register() == kTvmErrorNoError);
  /* microTVM hosts only use the name "default"; each executor has its own tensors. */
  TVMModuleHandle first = create(library, "default");
  TVMModuleHandle second = create(library, "default");
  REQUIRE(first != second);
  const float* one = run_with(first, values[0]);
  const float* other = run_with(second, values[1]);
  REQUIRE(memcmp(one, values[0], sizeof(values[0])) == 0 && memcmp(other, values[1], sizeof(values[1])) == 0);
  REQUIRE(TVMModFree(first) == 0);
  REQUIRE(memcmp(run_with(second, values[0]), values[0], sizeof(values[0])) == 0);
  /* Fill the module table; the library takes one handle. */
  for (int i = 2; i < TVM_CRT_MAX_REGISTERED_MODULES; ++i) REQUIRE(create(library, "default") != NULL);
  REQUIRE(TVMFuncGetGlobal("tvm.aot_executor.create", &function) == 0);
  args[0].v_handle = library;
  args[1].v_device = cpu;
  args[2].v_str = "default";
  REQUIRE(TVMFuncCall(function, args, codes, 3, &result, &code) == kTvmErrorFunctionCallWrongArgType);
  codes[1] = kDLDevice;
  REQUIRE(TVMFuncCall(function, args, codes, 3, &result, &code) == kTvmErrorFunctionRegistryFull);
  REQUIRE(strstr(TVMGetLastError(), "TVM_CRT_MAX_REGISTERED_MODULES") != NULL);
  REQUIRE(TVMFuncCall(function, args, codes, 2, &result, &code) == kTvmErrorFunctionCallNumArguments);
  REQUIRE(TVMModGetFunction(second, "load_params", 0, &function) == 0);
  REQUIRE(TVMFuncCall(function, NULL, NULL, 0, &result, &code) == kTvmErrorFunctionCallNotImplemented);
  for (uintptr_t index = 1; index < TVM_CRT_MAX_REGISTERED_MODULES; ++index) {
    REQUIRE(TVMModFree((TVMModuleHandle)(index | 0x8000)) == 0);
  }
}

int main(void) {
  TVMModuleHandle library;
  REQUIRE(TVMInitializeRuntime() == kTvmErrorNoError);
  REQUIRE(TVMModCreateFromCModule(TVMSystemLibEntryPoint(), &library) == 0);
  check_executor(library);
  check_modules(library);
  return 0;
}
