/* Memory of the C runtime for fuzzing: small, so that large requests fail as on a board. */
#ifndef FUZZ_CRT_PLATFORM_H_
#define FUZZ_CRT_PLATFORM_H_

#include <stdlib.h>
#include <string.h>
#include <tvm/runtime/crt/platform.h>

/* The limit of all blocks together; each block starts with its size. */
enum { MEMORY_BYTES = 4 << 20, SIZE_BYTES = 16 };

static size_t memory_used = 0;

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr) {
  (void)dev;
  if (num_bytes > MEMORY_BYTES - memory_used) return kTvmErrorPlatformNoMemory;
  char* block = (char*)malloc(num_bytes + SIZE_BYTES);
  if (block == NULL) return kTvmErrorPlatformNoMemory;
  memcpy(block, &num_bytes, sizeof(num_bytes));
  memory_used += num_bytes;
  *out_ptr = block + SIZE_BYTES;
  return kTvmErrorNoError;
}

tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev) {
  size_t num_bytes;
  char* block = (char*)ptr - SIZE_BYTES;
  (void)dev;
  memcpy(&num_bytes, block, sizeof(num_bytes));
  memory_used -= num_bytes;
  free(block);
  return kTvmErrorNoError;
}

void TVMPlatformAbort(tvm_crt_error_t code) {
  (void)code;
  abort();
}

/* Call this when everything of the runtime has been freed. */
static void require_all_freed(void) {
  if (memory_used != 0) abort();
}

/* Reads each byte of a tensor, so that a sanitizer checks it, and writes it on request. */
static void touch(const DLTensor* tensor, int write) {
  volatile unsigned char* bytes = (volatile unsigned char*)tensor->data;
  size_t count = ((size_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  for (int32_t i = 0; i < tensor->ndim; ++i) count *= (size_t)tensor->shape[i];
  for (size_t i = 0; i < count; ++i) {
    const unsigned char byte = bytes[i];
    if (write) bytes[i] = (unsigned char)(byte + 1);
  }
}

#endif
