/* Memory of the C runtime while it is fuzzed: little, so that what asks for more is refused as on a board. */
#ifndef FUZZ_CRT_PLATFORM_H_
#define FUZZ_CRT_PLATFORM_H_

#include <stdlib.h>
#include <string.h>
#include <tvm/runtime/crt/platform.h>

/* How much all blocks may have together; each block starts with its size. */
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

/* To be called when nothing of the runtime is left. */
static void require_all_freed(void) {
  if (memory_used != 0) abort();
}

/* Reads each byte of a tensor, so that a sanitizer sees whether it is there, and writes it if so asked. */
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
