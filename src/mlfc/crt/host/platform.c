/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* Platform functions of a host: malloc, the C library's clock, and standard error. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <tvm/runtime/crt/logging.h>
#include <tvm/runtime/crt/platform.h>

#include "../src/runtime/crt/common/config.h"

static TVM_CRT_THREAD_LOCAL clock_t started = (clock_t)-1;

tvm_crt_error_t TVMPlatformInitialize(void) { return kTvmErrorNoError; }

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr) {
  (void)dev;
  *out_ptr = malloc(num_bytes == 0 ? 1 : num_bytes);
  return *out_ptr == NULL ? kTvmErrorPlatformNoMemory : kTvmErrorNoError;
}

tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev) {
  (void)dev;
  free(ptr);
  return kTvmErrorNoError;
}

void TVMPlatformAbort(tvm_crt_error_t code) {
  fprintf(stderr, "the C runtime stopped with error %#x\n", (unsigned)code);
  abort();
}

size_t TVMPlatformFormatMessage(char* out_buf, size_t out_buf_size_bytes, const char* fmt, va_list args) {
  const int length = vsnprintf(out_buf, out_buf_size_bytes, fmt, args);
  return length < 0 ? 0 : (size_t)length;
}

/* The RPC server, if linked, replaces this function. */
#if defined(__GNUC__)
__attribute__((weak))
#endif
void TVMLogf(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vfprintf(stderr, fmt, args);
  va_end(args);
}

tvm_crt_error_t TVMPlatformTimerStart(void) {
  if (started != (clock_t)-1) return kTvmErrorPlatformTimerBadState;
  started = clock();
  return kTvmErrorNoError;
}

tvm_crt_error_t TVMPlatformTimerStop(double* elapsed_time_seconds) {
  if (started == (clock_t)-1) return kTvmErrorPlatformTimerBadState;
  *elapsed_time_seconds = (double)(clock() - started) / CLOCKS_PER_SEC;
  started = (clock_t)-1;
  return kTvmErrorNoError;
}

tvm_crt_error_t TVMPlatformBeforeMeasurement(void) { return kTvmErrorNoError; }

tvm_crt_error_t TVMPlatformAfterMeasurement(void) { return kTvmErrorNoError; }

/* Sufficient to distinguish sessions, the only use in the runtime; not for secrets. */
tvm_crt_error_t TVMPlatformGenerateRandom(uint8_t* buffer, size_t num_bytes) {
  FILE* source = fopen("/dev/urandom", "rb");
  const size_t got = source == NULL ? 0 : fread(buffer, 1, num_bytes, source);
  if (source != NULL) fclose(source);
  if (got == num_bytes) return kTvmErrorNoError;
  srand((unsigned)time(NULL) ^ (unsigned)clock());
  for (size_t i = 0; i < num_bytes; ++i) buffer[i] = (uint8_t)(rand() >> 7);
  return kTvmErrorNoError;
}
