/* Platform functions that the C runtime requires on a board that a host drives. SPDX-License-Identifier: 0BSD */
#include <crt_config.h>
#include <stdint.h>
#include <stdio.h>
#include <tvm/runtime/crt/logging.h>
#include <tvm/runtime/crt/page_allocator.h>
#include <tvm/runtime/crt/platform.h>

#include "counter.h"
#include "host_io.h"

enum { ABORTED = 71 };

/* Tensors, scratch, and the server's objects for a host. */
static uint8_t pool[PLATFORM_POOL_BYTES] __attribute__((aligned(64), section(".bss.noinit.platform")));
static MemoryManagerInterface *manager;
static uint64_t timer_start;
static int timer_runs;
static uint32_t random_state;

tvm_crt_error_t TVMPlatformInitialize(void) {
  return PageMemoryManagerCreate(&manager, pool, sizeof(pool), PLATFORM_PAGE_LOG2);
}

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void **out_ptr) {
  return manager->Allocate(manager, num_bytes, dev, out_ptr);
}

tvm_crt_error_t TVMPlatformMemoryFree(void *ptr, DLDevice dev) { return manager->Free(manager, ptr, dev); }

/* The host shows the log line with the session's last messages. */
void TVMPlatformAbort(tvm_crt_error_t code) {
  TVMLogf("the C runtime stopped with error 0x%x", (unsigned)code);
  host_exit(ABORTED);
}

size_t TVMPlatformFormatMessage(char *out_buf, size_t out_buf_size_bytes, const char *fmt, va_list args) {
  const int length = vsnprintf(out_buf, out_buf_size_bytes, fmt, args);
  return length < 0 ? 0 : (size_t)length;
}

tvm_crt_error_t TVMPlatformTimerStart(void) {
  if (timer_runs) {
    return kTvmErrorPlatformTimerBadState;
  }
  timer_runs = 1;
  timer_start = counter_ticks();
  return kTvmErrorNoError;
}

tvm_crt_error_t TVMPlatformTimerStop(double *elapsed_time_seconds) {
  const uint64_t ticks = counter_ticks() - timer_start;
  if (!timer_runs) {
    return kTvmErrorPlatformTimerBadState;
  }
  timer_runs = 0;
  *elapsed_time_seconds = (double)ticks / PLATFORM_TICKS_PER_SECOND;
  return kTvmErrorNoError;
}

tvm_crt_error_t TVMPlatformBeforeMeasurement(void) { return kTvmErrorNoError; }

tvm_crt_error_t TVMPlatformAfterMeasurement(void) { return kTvmErrorNoError; }

/* Only distinguishes sessions: mixes in the time of the host's request. */
tvm_crt_error_t TVMPlatformGenerateRandom(uint8_t *buffer, size_t num_bytes) {
  random_state ^= (uint32_t)counter_ticks();
  for (size_t i = 0; i < num_bytes; ++i) {
    random_state = random_state * 1664525U + 1013904223U;
    buffer[i] = (uint8_t)(random_state >> 24);
  }
  return kTvmErrorNoError;
}
