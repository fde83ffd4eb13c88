/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "remote_memory.h"

#include <tvm/runtime/crt/platform.h>

#include "../common/config.h"
#include "../common/error_text.h"
#include "../common/tensor.h"

/* Header of each block. */
typedef struct Header {
  struct Header* next;
  void* allocated;
  size_t num_bytes;
  DLDevice device;
} Header;

enum { MAX_ALIGNMENT = 4096 };

static Header* blocks = NULL;

tvm_crt_error_t remote_memory_allocate(DLDevice device, uint64_t num_bytes, uint64_t alignment, void** out) {
  void* allocated = NULL;
  *out = NULL;
  if (alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0) {
    return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "memory cannot be aligned to %u bytes", (uint32_t)alignment);
  }
  const size_t step = alignment < TVM_CRT_STORAGE_ALIGNMENT_BYTES ? TVM_CRT_STORAGE_ALIGNMENT_BYTES : (size_t)alignment;
  const size_t slack = sizeof(Header) + step - 1;
  if (num_bytes > SIZE_MAX - slack ||
      TVMPlatformMemoryAllocate((size_t)num_bytes + slack, device, &allocated) != kTvmErrorNoError ||
      allocated == NULL) {
    return tvm_crt_fail(kTvmErrorPlatformNoMemory, "no memory for %u bytes", (uint32_t)num_bytes);
  }
  const uintptr_t data = ((uintptr_t)allocated + slack) & ~(uintptr_t)(step - 1);
  Header* header = (Header*)data - 1;
  header->next = blocks;
  header->allocated = allocated;
  header->num_bytes = (size_t)num_bytes;
  header->device = device;
  blocks = header;
  *out = (void*)data;
  return kTvmErrorNoError;
}

tvm_crt_error_t remote_memory_free(void* address) {
  for (Header** link = &blocks; *link != NULL; link = &(*link)->next) {
    Header* header = *link;
    if (header + 1 == (Header*)address) {
      *link = header->next;
      return TVMPlatformMemoryFree(header->allocated, header->device);
    }
  }
  return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "there is no memory of the host's at this address");
}

bool remote_memory_holds(const void* address, size_t num_bytes) {
  for (const Header* header = blocks; header != NULL; header = header->next) {
    if (tvm_crt_lies_in(address, num_bytes, header + 1, header->num_bytes)) return true;
  }
  return false;
}

void remote_memory_free_all(void) {
  while (blocks != NULL) remote_memory_free(blocks + 1);
}
