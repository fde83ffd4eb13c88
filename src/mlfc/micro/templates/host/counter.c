/* Nanoseconds of a monotonic clock. SPDX-License-Identifier: 0BSD */
#define _POSIX_C_SOURCE 199309L
#include "counter.h"

#include <time.h>

static uint64_t started;

static uint64_t now(void) {
  struct timespec time;
  (void)clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

void counter_start(void) { started = now(); }

uint64_t counter_ticks(void) { return now() - started; }
