/* The count of instructions that the core keeps. SPDX-License-Identifier: 0BSD */
#include "counter.h"

void counter_start(void) {
  __asm volatile("csrw minstreth, zero\n\tcsrw minstret, zero");
}

uint64_t counter_ticks(void) {
  uint32_t low, high, again;
  do {
    __asm volatile("csrr %0, minstreth\n\tcsrr %1, minstret\n\tcsrr %2, minstreth" : "=r"(high), "=r"(low), "=r"(again));
  } while (high != again);
  return (uint64_t)high << 32 | low;
}
