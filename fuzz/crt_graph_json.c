/* libFuzzer harness: any text as a graph. Accepted graphs run, with operators that touch all memory of their arguments. */
#include <stdint.h>
#include <tvm/runtime/crt/graph_executor.h>
#include <tvm/runtime/crt/module.h>

#include "crt_platform.h"

static int touch_all(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, void* resource) {
  (void)ret;
  (void)ret_code;
  (void)resource;
  for (int i = 0; i < num_args; ++i) {
    if (codes[i] != kTVMNDArrayHandle) abort();
    touch((const DLTensor*)args[i].v_handle, 1);
  }
  return 0;
}

static const TVMBackendPackedCFunc functions[] = {touch_all};
static const TVMFuncRegistry registry = {"\001\000add\000", functions};
static const TVMModule module = {&registry};

const TVMModule* TVMSystemLibEntryPoint(void) { return &module; }

static void use(TVMGraphExecutor* executor) {
  DLTensor* input;
  const int num_inputs = TVMGraphExecutor_GetNumInputs(executor);
  for (int i = 0; i < num_inputs; ++i) {
    if (TVMGraphExecutor_GetInput(executor, i, &input) == 0) touch(input, 1);
  }
  if (TVMGraphExecutor_Run(executor) != 0) return;
  for (int i = 0; i < TVMGraphExecutor_GetNumOutputs(executor); ++i) {
    DLTensor output;
    memset(&output, 0, sizeof(output));
    if (TVMGraphExecutor_GetOutput(executor, i, &output) == 0) touch(&output, 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static TVMModuleHandle handle = NULL;
  const DLDevice cpu = {kDLCPU, 0};
  TVMGraphExecutor* executor;
  if (handle == NULL && TVMModCreateFromCModule(&module, &handle) != 0) abort();
  /* A copy of the exact size, so that reading past the NUL is detected. */
  char* text = (char*)malloc(size + 1);
  if (text == NULL) return 0;
  memcpy(text, data, size);
  text[size] = '\0';
  const int error = TVMGraphExecutor_Create(text, handle, &cpu, &executor);
  free(text);
  if ((error == 0) != (executor != NULL)) abort();
  if (error == 0) {
    use(executor);
    if (TVMGraphExecutor_Release(&executor) != 0) abort();
  }
  require_all_freed();
  return 0;
}
