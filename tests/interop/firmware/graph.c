/* Firmware for a graph module: memory in pages, functions of the system library. Reads inputs, writes outputs. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/crt.h>
#include <tvm/runtime/crt/graph_executor.h>
#include <tvm/runtime/crt/logging.h>
#include <tvm/runtime/crt/packed_func.h>
#include <tvm/runtime/crt/page_allocator.h>
#include <tvm/runtime/crt/platform.h>

static uint8_t g_crt_memory[16384 * (1 << 10)];
static MemoryManagerInterface* g_memory_manager;

size_t TVMPlatformFormatMessage(char* out_buf, size_t out_buf_size_bytes, const char* fmt, va_list args) {
  return vsnprintf(out_buf, out_buf_size_bytes, fmt, args);
}

void TVMPlatformAbort(tvm_crt_error_t error) { exit(error); }

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr) {
  return g_memory_manager->Allocate(g_memory_manager, num_bytes, dev, out_ptr);
}

tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev) {
  return g_memory_manager->Free(g_memory_manager, ptr, dev);
}

void TVMLogf(const char* msg, ...) {}

static char* content(const char* path, uint32_t* size) {
  FILE* file = fopen(path, "rb");
  char* text;
  fseek(file, 0, SEEK_END);
  *size = ftell(file);
  rewind(file);
  text = calloc(1, *size + 1);
  fread(text, 1, *size, file);
  fclose(file);
  return text;
}

int main(void) {
  uint32_t json_size, params_size;
  const char* json = content("model/executor-config/graph/kws.graph", &json_size);
  const char* params = content("model/parameters/kws.params", &params_size);
  DLDevice dev = {.device_type = kDLCPU, .device_id = 0};
  int8_t in[490], out[12];
  int64_t in_shape[4] = {1, 49, 10, 1}, out_shape[2] = {1, 12};
  DLTensor input = {.data = in, .device = dev, .ndim = 4, .dtype = {kDLInt, 8, 1}, .shape = in_shape};
  DLTensor output = {.data = out, .device = dev, .ndim = 2, .dtype = {kDLInt, 8, 1}, .shape = out_shape};
  TVMPackedFunc pf;
  TVMArgs args = TVMArgs_Create(NULL, NULL, 0);
  TVMModuleHandle mod;
  TVMGraphExecutor* executor = NULL;
  PageMemoryManagerCreate(&g_memory_manager, g_crt_memory, sizeof(g_crt_memory), 10);
  TVMInitializeRuntime();
  TVMPackedFunc_InitGlobalFunc(&pf, "runtime.SystemLib", &args);
  TVMPackedFunc_Call(&pf);
  mod = TVMArgs_AsModuleHandle(&pf.ret_value, 0);
  if (TVMGraphExecutor_Create(json, mod, &dev, &executor) != 0) {
    fprintf(stderr, "%s\n", TVMGetLastError());
    return 1;
  }
  if (TVMGraphExecutor_LoadParams(executor, params, params_size) != 0) {
    return 2;
  }
  while (fread(in, 1, sizeof(in), stdin) == sizeof(in)) {
    TVMGraphExecutor_SetInput(executor, "input_1", &input);
    TVMGraphExecutor_Run(executor);
    TVMGraphExecutor_GetOutput(executor, 0, &output);
    fwrite(out, 1, sizeof(out), stdout);
  }
  return TVMGraphExecutor_Release(&executor);
}
