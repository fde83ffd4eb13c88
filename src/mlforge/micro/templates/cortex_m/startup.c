/* Start-up of a Cortex-M: vector table, floating point and vector units, data and bss. SPDX-License-Identifier: 0BSD */
#include <stdint.h>

#include "counter.h"
#include "host_io.h"
#include "sections.h"

extern uint32_t linker_stack_top[];

int main(void);

static void reset(void);

static void fault(void) {
  host_print("fault: the core took an exception that nothing handles\n");
  host_exit(70);
}

struct vector_table {
  uint32_t *stack_top;
  void (*handlers[15])(void);
};

/* the order is the architecture's: reset, NMI, faults, ..., SysTick */
const struct vector_table vector_table __attribute__((section(".vectors"), used)) = {
    linker_stack_top,
    {reset, fault, fault, fault, fault, fault, fault, 0, 0, 0, fault, fault, 0, fault, counter_overflow}};

static void reset(void) {
  counter_start();
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
  /* full access to coprocessors 10 and 11: the floating-point unit and, where there are any, vectors */
  volatile uint32_t *const cpacr = (volatile uint32_t *)0xE000ED88U;
  *cpacr |= 0xFU << 20;
  __asm volatile("dsb\n\tisb" ::: "memory");
#endif
  sections_load();
  host_exit(main());
}
