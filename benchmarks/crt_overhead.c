/* A trivial operator, called by the C graph executor and by a bare loop. */
#include <stdint.h>
#include <tvm/runtime/crt/graph_executor.h>
#include <tvm/runtime/crt/module.h>

/* Adds one to the first element: the least an operator does is read its arguments and store a result. */
static int32_t add_one(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, void* resource) {
  (void)codes;
  (void)num_args;
  (void)ret;
  (void)ret_code;
  (void)resource;
  const float* in = (const float*)((DLTensor*)args[0].v_handle)->data;
  float* out = (float*)((DLTensor*)args[1].v_handle)->data;
  out[0] = in[0] + 1.0f;
  return 0;
}

static const TVMBackendPackedCFunc functions[] = {add_one};
static const TVMFuncRegistry registry = {"\001\000add_one\000", functions};
static const TVMModule module = {&registry};

const TVMModule* TVMSystemLibEntryPoint(void) { return &module; }

/* Returns NULL on failure. */
TVMGraphExecutor* create(const char* graph) {
  const DLDevice cpu = {kDLCPU, 0};
  TVMModuleHandle handle;
  TVMGraphExecutor* executor = NULL;
  if (TVMModCreateFromCModule(&module, &handle) == 0) TVMGraphExecutor_Create(graph, handle, &cpu, &executor);
  return executor;
}

int run_executor(TVMGraphExecutor* executor, int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
    if (TVMGraphExecutor_Run(executor) != 0) return -1;
  }
  return 0;
}

/* The same number of calls in a plain loop, of a function that the compiler cannot inline. */
int run_bare(int64_t rounds, int32_t calls) {
  TVMBackendPackedCFunc volatile hidden = add_one;
  const TVMBackendPackedCFunc function = hidden;
  float values[2] = {0, 0};
  DLTensor tensors[2] = {{.data = &values[0]}, {.data = &values[1]}};
  TVMValue args[2] = {{.v_handle = &tensors[0]}, {.v_handle = &tensors[1]}};
  int codes[2] = {kTVMNDArrayHandle, kTVMNDArrayHandle};
  for (int64_t i = 0; i < rounds; ++i) {
    for (int32_t call = 0; call < calls; ++call) {
      TVMValue value;
      int code;
      args[0].v_handle = &tensors[call & 1];
      args[1].v_handle = &tensors[~call & 1];
      if (function(args, codes, 2, &value, &code, NULL) != 0) return -1;
    }
  }
  return 0;
}
