/* SysTick counts down from 2**24 - 1 and interrupts when it starts again. SPDX-License-Identifier: 0BSD */
#include "counter.h"

#define SYST_CSR (*(volatile uint32_t *)0xE000E010U)
#define SYST_RVR (*(volatile uint32_t *)0xE000E014U)
#define SYST_CVR (*(volatile uint32_t *)0xE000E018U)

enum { RELOAD = 0xFFFFFF, ENABLE = 1, INTERRUPT = 2, CORE_CLOCK = 4 };

static volatile uint32_t overflows;

void counter_overflow(void) { ++overflows; }

void counter_start(void) {
  SYST_RVR = RELOAD;
  SYST_CVR = 0;
  SYST_CSR = ENABLE | INTERRUPT | CORE_CLOCK;
  while (SYST_CVR == 0) {
  }
}

uint64_t counter_ticks(void) {
  uint32_t before, value;
  do {
    before = overflows;
    value = SYST_CVR;
  } while (before != overflows);
  return (uint64_t)before * (RELOAD + 1U) + (RELOAD - value);
}
