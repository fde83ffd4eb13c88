/*
 * Runs a graph on several int8 inputs: run_graph GRAPH PARAMS load|link|module INPUT_NAME INPUTS, outputs to standard
 * output.
 */
#include <string.h>
#include <tvm/runtime/crt/crt.h>
#include <tvm/runtime/crt/graph_executor.h>
#include <tvm/runtime/crt/graph_executor_module.h>
#include <tvm/runtime/crt/packed_func.h>
#include <tvm/runtime/crt/platform.h>

#include "files.h"

static const DLDevice cpu = {kDLCPU, 0};

static size_t bytes_of(const DLTensor* tensor) {
  size_t bytes = 1;
  REQUIRE(tensor->dtype.bits == 8);
  for (int i = 0; i < tensor->ndim; ++i) bytes *= (size_t)tensor->shape[i];
  return bytes;
}

static TVMModuleHandle system_library(void) {
  TVMPackedFunc get;
  const TVMArgs none = TVMArgs_Create(NULL, NULL, 0);
  REQUIRE(TVMPackedFunc_InitGlobalFunc(&get, "runtime.SystemLib", &none) == 0);
  REQUIRE(TVMPackedFunc_Call(&get) == 0);
  TVMModuleHandle first = TVMArgs_AsModuleHandle(&get.ret_value, 0);
  REQUIRE(get.Call(&get) == 0);
  REQUIRE(first != NULL && first == TVMArgs_AsModuleHandle(&get.ret_value, 0));
  return first;
}

static void run_executor(const char* graph, const char* params, size_t params_size, int link, const char* name,
                         char* inputs, size_t inputs_size) {
  TVMGraphExecutor* executor;
  DLTensor* own;
  REQUIRE(TVMGraphExecutor_Create(graph, system_library(), &cpu, &executor) == 0);
  if (link) {
    uint32_t linked = 0;
    REQUIRE(TVMGraphExecutor_LinkParams(executor, params, (uint32_t)params_size, 1, &linked) == 0 && linked > 0);
  } else {
    REQUIRE(TVMGraphExecutor_LoadParams(executor, params, (uint32_t)params_size) == 0);
  }
  const int index = TVMGraphExecutor_GetInputIndex(executor, name);
  REQUIRE(TVMGraphExecutor_GetInput(executor, index, &own) == 0);
  const size_t input_bytes = bytes_of(own);
  for (size_t at = 0; at + input_bytes <= inputs_size; at += input_bytes) {
    DLTensor input = *own;
    DLTensor output;
    memset(&output, 0, sizeof(output));
    input.data = inputs + at;
    REQUIRE(TVMGraphExecutor_SetInput(executor, name, &input) == 0);
    REQUIRE(TVMGraphExecutor_Run(executor) == 0);
    REQUIRE(TVMGraphExecutor_GetOutput(executor, 0, &output) == 0);
    fwrite(output.data, 1, bytes_of(&output), stdout);
  }
  REQUIRE(TVMGraphExecutor_Release(&executor) == 0 && executor == NULL);
}

static TVMValue call(TVMModuleHandle module, const char* name, const TVMValue* values, const int* codes,
                     uint32_t count) {
  TVMPackedFunc function;
  uint32_t unsigned_codes[4] = {0};
  TVMValue copies[4];
  for (uint32_t i = 0; i < count; ++i) {
    unsigned_codes[i] = (uint32_t)codes[i];
    copies[i] = values[i];
  }
  const TVMArgs args = TVMArgs_Create(copies, unsigned_codes, count);
  if (module == NULL) {
    REQUIRE(TVMPackedFunc_InitGlobalFunc(&function, name, &args) == 0);
  } else {
    REQUIRE(TVMPackedFunc_InitModuleFunc(&function, module, name, &args) == 0);
  }
  REQUIRE(TVMPackedFunc_Call(&function) == 0);
  REQUIRE(function.ret_value.values_count == 1);
  return function.ret_value.values[0];
}

static void run_module(const char* graph, const char* params, size_t params_size, const char* name, char* inputs,
                       size_t inputs_size) {
  REQUIRE(TVMGraphExecutorModule_Register() == kTvmErrorNoError);
  TVMValue values[4];
  values[0].v_str = graph;
  values[1].v_handle = system_library();
  values[2].v_int64 = kDLCPU;
  values[3].v_int64 = 0;
  const int create_codes[] = {kTVMStr, kTVMModuleHandle, kTVMArgInt, kTVMArgInt};
  TVMModuleHandle module = call(NULL, "tvm.graph_executor.create", values, create_codes, 4).v_handle;
  TVMByteArray bytes = {params, params_size};
  const int bytes_code = kTVMBytes;
  values[0].v_handle = &bytes;
  call(module, "load_params", values, &bytes_code, 1);
  const int name_code = kTVMStr;
  values[0].v_str = name;
  DLTensor input = *(DLTensor*)call(module, "get_input", values, &name_code, 1).v_handle;
  const size_t input_bytes = bytes_of(&input);
  for (size_t at = 0; at + input_bytes <= inputs_size; at += input_bytes) {
    const int set_codes[] = {kTVMStr, kTVMDLTensorHandle};
    const int index_code = kTVMArgInt;
    input.data = inputs + at;
    values[0].v_str = name;
    values[1].v_handle = &input;
    call(module, "set_input", values, set_codes, 2);
    call(module, "run", NULL, NULL, 0);
    values[0].v_int64 = 0;
    const DLTensor* output = (const DLTensor*)call(module, "get_output", values, &index_code, 1).v_handle;
    fwrite(output->data, 1, bytes_of(output), stdout);
  }
  REQUIRE(TVMModFree(module) == 0);
}

int main(int argc, char** argv) {
  size_t graph_size;
  size_t params_size;
  size_t inputs_size;
  REQUIRE(argc == 6);
  char* graph = read_file(argv[1], &graph_size);
  char* params = read_file(argv[2], &params_size);
  char* inputs = read_file(argv[5], &inputs_size);
  REQUIRE(TVMPlatformInitialize() == kTvmErrorNoError && TVMInitializeRuntime() == kTvmErrorNoError);
  if (strcmp(argv[3], "module") == 0) {
    run_module(graph, params, params_size, argv[4], inputs, inputs_size);
  } else {
    run_executor(graph, params, params_size, strcmp(argv[3], "link") == 0, argv[4], inputs, inputs_size);
  }
  free(graph);
  free(params);
  free(inputs);
  return 0;
}
