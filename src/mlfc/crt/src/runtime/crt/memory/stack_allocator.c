/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>
#include <tvm/runtime/crt/stack_allocator.h>

#include "../common/error_text.h"

#include <crt_config.h>

enum { ALIGNMENT = TVM_RUNTIME_ALLOC_ALIGNMENT_BYTES };

#ifdef TVM_CRT_STACK_ALLOCATOR_ENABLE_LIFO_CHECK
/* After each block: its size and a tag, to detect blocks that overran their end or are freed out of order. */
typedef struct {
  uint32_t size;
  uint32_t tag;
} Footer;
enum { FOOTER_BYTES = sizeof(Footer) };
#else
enum { FOOTER_BYTES = 0 };
#endif

tvm_crt_error_t StackMemoryManager_Init(tvm_workspace_t* tvm_runtime_workspace, uint8_t* g_aot_memory,
                                        size_t workspace_size) {
  const size_t misaligned = (size_t)((uintptr_t)g_aot_memory % ALIGNMENT);
  const size_t padding = misaligned == 0 ? 0 : ALIGNMENT - misaligned;
  if (padding > workspace_size) {
    return tvm_crt_fail(kTvmErrorPlatformNoMemory, "a workspace of %u bytes cannot be aligned",
                        (uint32_t)workspace_size);
  }
  tvm_runtime_workspace->workspace = g_aot_memory + padding;
  tvm_runtime_workspace->next_alloc = tvm_runtime_workspace->workspace;
  tvm_runtime_workspace->workspace_size = workspace_size - padding;
  return kTvmErrorNoError;
}

tvm_crt_error_t StackMemoryManager_Allocate(tvm_workspace_t* tvm_runtime_workspace, int32_t nbytes,
                                            void** current_alloc) {
  tvm_workspace_t* stack = tvm_runtime_workspace;
  const size_t left = stack->workspace_size - (size_t)(stack->next_alloc - stack->workspace);
  *current_alloc = NULL;
  if (nbytes >= 0 && (size_t)nbytes <= SIZE_MAX - ALIGNMENT - FOOTER_BYTES) {
    /* An empty block also uses memory: its address must lie within the stack when it is freed. */
    const size_t bytes = nbytes == 0 ? 1 : (size_t)nbytes;
    const size_t taken = (bytes + FOOTER_BYTES + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (taken <= left) {
      *current_alloc = stack->next_alloc;
      stack->next_alloc += taken;
#ifdef TVM_CRT_STACK_ALLOCATOR_ENABLE_LIFO_CHECK
      const Footer footer = {(uint32_t)taken, STACK_ALLOCATOR_TAG};
      memcpy(stack->next_alloc - FOOTER_BYTES, &footer, FOOTER_BYTES);
#endif
      return kTvmErrorNoError;
    }
  }
  return tvm_crt_fail(kTvmErrorPlatformNoMemory, "the workspace has %u bytes left, %u are asked for", (uint32_t)left,
                      (uint32_t)nbytes);
}

tvm_crt_error_t StackMemoryManager_Free(tvm_workspace_t* tvm_runtime_workspace, void* ptr) {
  tvm_workspace_t* stack = tvm_runtime_workspace;
  const uintptr_t block = (uintptr_t)ptr;
  if (block < (uintptr_t)stack->workspace || block >= (uintptr_t)stack->next_alloc || block % ALIGNMENT != 0) {
    return tvm_crt_fail(kTvmErrorPlatformStackAllocBadFree, "the workspace does not hold the block that is freed");
  }
#ifdef TVM_CRT_STACK_ALLOCATOR_ENABLE_LIFO_CHECK
  Footer footer;
  memcpy(&footer, stack->next_alloc - FOOTER_BYTES, FOOTER_BYTES);
  if (footer.tag != STACK_ALLOCATOR_TAG) {
    return tvm_crt_fail(kTvmErrorPlatformStackAllocBadFree, "bytes behind a workspace block were written to");
  }
  if ((uintptr_t)stack->next_alloc - footer.size != block) {
    return tvm_crt_fail(kTvmErrorPlatformStackAllocBadFree, "a workspace block is freed before one that came after it");
  }
#endif
  stack->next_alloc = (uint8_t*)ptr;
  return kTvmErrorNoError;
}
