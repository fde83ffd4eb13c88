/*
 * Runs a module with the C interface on several inputs: run_aot kws|ad INPUTS, outputs to standard output. The
 * workspace is a stack of exactly the size that the module's header declares.
 */
#include <string.h>
#include <tvm/runtime/crt/platform.h>
#include <tvm/runtime/crt/stack_allocator.h>
#include <tvmgen_kws.h>
#ifdef WITH_AD
#include <tvmgen_ad.h>
#endif

#include "files.h"

static union {
  uint8_t bytes[TVMGEN_KWS_WORKSPACE_SIZE];
  long double alignment;
} memory;
static tvm_workspace_t workspace;

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr) {
  (void)dev;
  return StackMemoryManager_Allocate(&workspace, (int32_t)num_bytes, out_ptr);
}

tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev) {
  (void)dev;
  return StackMemoryManager_Free(&workspace, ptr);
}

void TVMPlatformAbort(tvm_crt_error_t code) {
  fprintf(stderr, "error %#x\n", (unsigned)code);
  abort();
}

static void run_kws(char* input) {
  char output[TVMGEN_KWS_IDENTITY_SIZE];
  struct tvmgen_kws_inputs inputs = {input};
  struct tvmgen_kws_outputs outputs = {output};
  REQUIRE(tvmgen_kws_run(&inputs, &outputs) == 0);
  fwrite(output, 1, sizeof(output), stdout);
}

#ifdef WITH_AD
static void run_ad(char* input) {
  char output[TVMGEN_AD_IDENTITY_SIZE];
  struct tvmgen_ad_inputs inputs = {input};
  struct tvmgen_ad_outputs outputs = {output};
  REQUIRE(tvmgen_ad_run(&inputs, &outputs) == 0);
  fwrite(output, 1, sizeof(output), stdout);
}
#endif

int main(int argc, char** argv) {
  size_t size;
  size_t step = TVMGEN_KWS_INPUT_1_SIZE;
  size_t workspace_bytes = TVMGEN_KWS_WORKSPACE_SIZE;
  void (*run)(char* input) = run_kws;
  REQUIRE(argc == 3);
#ifdef WITH_AD
  if (strcmp(argv[1], "ad") == 0) {
    step = TVMGEN_AD_INPUT_1_SIZE;
    workspace_bytes = TVMGEN_AD_WORKSPACE_SIZE;
    run = run_ad;
  }
#endif
  char* inputs = read_file(argv[2], &size);
  REQUIRE(StackMemoryManager_Init(&workspace, memory.bytes, workspace_bytes) == kTvmErrorNoError);
  for (size_t at = 0; at + step <= size; at += step) {
    run(inputs + at);
    REQUIRE(workspace.next_alloc == workspace.workspace);
  }
  free(inputs);
  return 0;
}
