/* Firmware for an AOT module with the C interface: the workspace is a stack in one array. Reads inputs, writes outputs. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/logging.h>
#include <tvm/runtime/crt/platform.h>
#include <tvm/runtime/crt/stack_allocator.h>

#include "tvmgen_kws.h"

static uint8_t g_aot_memory[TVMGEN_KWS_WORKSPACE_SIZE + 1024];
tvm_workspace_t app_workspace;

size_t TVMPlatformFormatMessage(char* out_buf, size_t out_buf_size_bytes, const char* fmt, va_list args) {
  return vsnprintf(out_buf, out_buf_size_bytes, fmt, args);
}

void TVMPlatformAbort(tvm_crt_error_t error) { exit(error); }

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr) {
  return StackMemoryManager_Allocate(&app_workspace, num_bytes, out_ptr);
}

tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev) { return StackMemoryManager_Free(&app_workspace, ptr); }

void TVMLogf(const char* msg, ...) {}

TVM_DLL int TVMFuncRegisterGlobal(const char* name, TVMFunctionHandle f, int override) { return 0; }

int main(void) {
  int8_t input[TVMGEN_KWS_INPUT_1_SIZE], output[TVMGEN_KWS_IDENTITY_SIZE];
  struct tvmgen_kws_inputs inputs = {.input_1 = input};
  struct tvmgen_kws_outputs outputs = {.Identity = output};
  StackMemoryManager_Init(&app_workspace, g_aot_memory, sizeof(g_aot_memory));
  while (fread(input, 1, sizeof(input), stdin) == sizeof(input)) {
    if (tvmgen_kws_run(&inputs, &outputs) != 0) {
      return 1;
    }
    fwrite(output, 1, sizeof(output), stdout);
  }
  return 0;
}
