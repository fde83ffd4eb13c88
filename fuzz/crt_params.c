/*
 * libFuzzer harness: any bytes as a parameter file of one graph, copied and used in place. The first byte selects the
 * file's alignment and the required alignment.
 */
#include <stdint.h>
#include <tvm/runtime/crt/graph_executor.h>
#include <tvm/runtime/crt/module.h>

#include "crt_platform.h"

/* p2 and p3 share storage; p4 shares storage with a result. */
static const char graph[] =
    "{\"nodes\":[{\"op\":\"null\",\"name\":\"p0\",\"inputs\":[]},{\"op\":\"null\",\"name\":\"p1\",\"inputs\":[]},"
    "{\"op\":\"null\",\"name\":\"p2\",\"inputs\":[]},{\"op\":\"null\",\"name\":\"p3\",\"inputs\":[]},"
    "{\"op\":\"null\",\"name\":\"p4\",\"inputs\":[]},{\"op\":\"tvm_op\",\"name\":\"add\",\"inputs\":[[0,0,0],[1,0,0],"
    "[2,0,0],[3,0,0],[4,0,0]],\"attrs\":{\"func_name\":\"add\",\"num_inputs\":\"5\",\"num_outputs\":\"1\","
    "\"flatten_data\":\"0\"}}],\"arg_nodes\":[0,1,2,3,4],\"heads\":[[5,0,0]],\"attrs\":{\"dltype\":[\"list_str\","
    "[\"float32\",\"int8\",\"float32\",\"int64\",\"uint8\",\"uint8\"]],\"shape\":[\"list_shape\",[[2],[3,4],[],[1],[5],"
    "[5]]],\"storage_id\":[\"list_int\",[0,1,2,2,3,3]]},\"node_row_ptr\":[0,1,2,3,4,5,6]}";

/* Reads its inputs, which may be in the file, and writes its output. */
static int touch_arguments(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, void* resource) {
  (void)codes;
  (void)ret;
  (void)ret_code;
  (void)resource;
  for (int i = 0; i < num_args; ++i) touch((const DLTensor*)args[i].v_handle, i == num_args - 1);
  return 0;
}

static const TVMBackendPackedCFunc functions[] = {touch_arguments};
static const TVMFuncRegistry registry = {"\001\000add\000", functions};
static const TVMModule module = {&registry};

const TVMModule* TVMSystemLibEntryPoint(void) { return &module; }

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static TVMModuleHandle handle = NULL;
  const DLDevice cpu = {kDLCPU, 0};
  TVMGraphExecutor* executor;
  if (handle == NULL && TVMModCreateFromCModule(&module, &handle) != 0) abort();
  if (size == 0) return 0;
  const size_t offset = data[0] % 16;
  const uint32_t alignment = (uint32_t)1 << (data[0] / 16 % 5);
  /* The file ends where its memory ends. */
  char* memory = (char*)malloc(offset + size - 1);
  if (memory == NULL && offset + size > 1) return 0;
  if (size > 1) memcpy(memory + offset, data + 1, size - 1);
  if (TVMGraphExecutor_Create(graph, handle, &cpu, &executor) != 0) abort();
  uint32_t linked = 0;
  const int error = TVMGraphExecutor_LinkParams(executor, memory + offset, (uint32_t)(size - 1), alignment, &linked);
  if (TVMGraphExecutor_Run(executor) != 0) abort();
  if (TVMGraphExecutor_LoadParams(executor, memory + offset, (uint32_t)(size - 1)) != error) abort();
  if (TVMGraphExecutor_Run(executor) != 0 || TVMGraphExecutor_Release(&executor) != 0) abort();
  free(memory);
  require_all_freed();
  return 0;
}
