/* The workspace of code that TVM compiled, which takes blocks of it and gives them back in turn.
 * SPDX-License-Identifier: 0BSD */
#include <crt_config.h>
#include <stdint.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/stack_allocator.h>

static uint8_t memory[WORKSPACE_BYTES] __attribute__((aligned(64), section(".bss.noinit.tvm")));
static tvm_workspace_t stack;

void *TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t nbytes, int dtype_code_hint, int dtype_bits_hint) {
  void *block = NULL;
  (void)device_type;
  (void)device_id;
  (void)dtype_code_hint;
  (void)dtype_bits_hint;
  if (stack.workspace == NULL && StackMemoryManager_Init(&stack, memory, sizeof memory) != kTvmErrorNoError) {
    return NULL;
  }
  if (nbytes > sizeof memory || StackMemoryManager_Allocate(&stack, (int32_t)nbytes, &block) != kTvmErrorNoError) {
    return NULL;
  }
  return block;
}

int TVMBackendFreeWorkspace(int device_type, int device_id, void *ptr) {
  (void)device_type;
  (void)device_id;
  return StackMemoryManager_Free(&stack, ptr) == kTvmErrorNoError ? 0 : -1;
}
