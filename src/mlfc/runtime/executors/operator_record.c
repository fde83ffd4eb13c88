/* What tracing does in a library for `TracedModule`: times every operator of a run, or shows its output to a function.
 * mlfc_trace.h calls it. */
#define _POSIX_C_SOURCE 199309L
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef void (*observer_function)(int32_t index, const void *data, size_t nbytes);

static uint64_t latest = 0; /* what the clock was when it was last read: at the end of the operator that is recorded */
static uint64_t *recorded = NULL;
static int32_t capacity = 0;
static observer_function observer = NULL;

uint64_t mlfc_trace_nanoseconds(void) {
#ifdef CLOCK_MONOTONIC
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  latest = (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
#else
  latest = (uint64_t)((double)clock() * (1e9 / CLOCKS_PER_SEC));
#endif
  return latest;
}

/* Record into `nanoseconds`: the starts of `count` operators, then what they took; NULL and 0 end the recording. */
void mlfc_trace_time(uint64_t *nanoseconds, int32_t count) {
  recorded = nanoseconds;
  capacity = count;
}

/* Call `function` at the end of each operator; NULL ends it. */
void mlfc_trace_observe(observer_function function) { observer = function; }

void mlfc_trace_operator(int32_t index, const void *data, size_t nbytes, uint64_t nanoseconds) {
  if (index < capacity) {
    recorded[index] = latest - nanoseconds;
    recorded[capacity + index] = nanoseconds;
  }
  if (observer != NULL) {
    observer(index, data, nbytes);
  }
}
