/* Records how long each operator of one run took. Operators run one after another, so one start time is enough. */
#define _POSIX_C_SOURCE 199309L
#include "mlforge_trace.h"

#include <stddef.h>
#include <time.h>

static uint64_t *recorded = NULL;
static int32_t capacity = 0;
static uint64_t started = 0;

static uint64_t now(void) {
#ifdef CLOCK_MONOTONIC
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
#else
  return (uint64_t)((double)clock() * (1e9 / CLOCKS_PER_SEC));
#endif
}

void mlforge_trace_record(uint64_t *nanoseconds, int32_t count) {
  recorded = nanoseconds;
  capacity = count;
}

void mlforge_trace_begin(void) { started = now(); }

void mlforge_trace_end(int32_t index) {
  const uint64_t ended = now();
  if (index < capacity) {
    recorded[index] = ended - started;
  }
}
