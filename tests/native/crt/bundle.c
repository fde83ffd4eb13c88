/*
 * Runs a graph of int8 tensors in memory that the program manages, as TVM's example of bundles does:
 * bundle GRAPH PARAMS INPUT_NAME INPUTS, outputs to standard output.
 */
#include <tvm/runtime/crt/crt.h>
#include <tvm/runtime/crt/graph_executor.h>
#include <tvm/runtime/crt/packed_func.h>
#include <tvm/runtime/crt/page_allocator.h>
#include <tvm/runtime/crt/platform.h>

#include "files.h"

static uint8_t memory[1 << 21];
static MemoryManagerInterface* manager;

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr) {
  return manager->Allocate(manager, num_bytes, dev, out_ptr);
}

tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev) { return manager->Free(manager, ptr, dev); }

void TVMPlatformAbort(tvm_crt_error_t code) { exit((int)code); }

tvm_crt_error_t TVMPlatformTimerStart(void) { return kTvmErrorFunctionCallNotImplemented; }

tvm_crt_error_t TVMPlatformTimerStop(double* seconds) {
  *seconds = 0;
  return kTvmErrorFunctionCallNotImplemented;
}

int main(int argc, char** argv) {
  size_t graph_size, params_size, inputs_size;
  const DLDevice cpu = {kDLCPU, 0};
  TVMGraphExecutor* executor = NULL;
  TVMPackedFunc library;
  DLTensor input, output = {0};
  DLTensor* own;
  REQUIRE(argc == 5);
  char* graph = read_file(argv[1], &graph_size);
  char* params = read_file(argv[2], &params_size);
  char* inputs = read_file(argv[4], &inputs_size);
  REQUIRE(PageMemoryManagerCreate(&manager, memory, sizeof(memory), 10) == 0 && TVMInitializeRuntime() == 0);
  const TVMArgs none = TVMArgs_Create(NULL, NULL, 0);
  REQUIRE(TVMPackedFunc_InitGlobalFunc(&library, "runtime.SystemLib", &none) == 0);
  REQUIRE(TVMPackedFunc_Call(&library) == 0);
  REQUIRE(TVMGraphExecutor_Create(graph, TVMArgs_AsModuleHandle(&library.ret_value, 0), &cpu, &executor) == 0);
  REQUIRE(TVMGraphExecutor_LoadParams(executor, params, (uint32_t)params_size) == 0);
  REQUIRE(TVMGraphExecutor_GetInput(executor, TVMGraphExecutor_GetInputIndex(executor, argv[3]), &own) == 0);
  input = *own;
  input.data = inputs;
  REQUIRE(TVMGraphExecutor_SetInput(executor, argv[3], &input) == 0 && TVMGraphExecutor_Run(executor) == 0);
  REQUIRE(TVMGraphExecutor_GetOutput(executor, 0, &output) == 0);
  size_t bytes = 1;
  for (int i = 0; i < output.ndim; ++i) bytes *= (size_t)output.shape[i];
  fwrite(output.data, 1, bytes, stdout);
  REQUIRE(TVMGraphExecutor_Release(&executor) == 0);
  return 0;
}
