/* Start-up of a Cortex-M: vector table, floating point and vector units, data and bss. SPDX-License-Identifier: 0BSD */
#include <stdint.h>

#include "counter.h"
#include "fault.h"
#include "host_io.h"
#include "sections.h"

#define SCB_VTOR (*(volatile uintptr_t *)0xE000ED08U)
#define SCB_CPACR (*(volatile uint32_t *)0xE000ED88U)

enum { FRAME_PC = 6 }; /* in the words that the core pushes when it takes an exception */

extern uint32_t linker_stack_top[], linker_stack_bottom[];

int main(void);

static void reset(void);

void unexpected(const uint32_t *frame) __attribute__((noreturn, used));

static void exception(void) __attribute__((naked));

static void exception(void) {
  /* a stack overflow must not stop the handler */
  __asm volatile(
      "mov r0, sp\n\tldr r1, =linker_stack_bottom\n\tcmp r0, r1\n\tbhs 1f\n\t"
      "ldr r1, =linker_stack_top\n\tmov sp, r1\n1:\n\tbl unexpected");
}

void unexpected(const uint32_t *frame) {
  uint32_t number;
  __asm volatile("mrs %0, ipsr" : "=r"(number));
  /* after a stack overflow the frame may be missing */
  const int is_stacked = frame >= linker_stack_bottom && frame + FRAME_PC < linker_stack_top;
  fault(number, is_stacked ? frame[FRAME_PC] : 0);
}

struct vector_table {
  uint32_t *stack_top;
  void (*handlers[15])(void);
};

/* the order is the architecture's: reset, NMI, faults, ..., SysTick */
const struct vector_table vector_table __attribute__((section(".vectors"), used, aligned(128))) = {
    linker_stack_top,
    {reset, exception, exception, exception, exception, exception, exception, 0, 0, 0, exception, exception, 0,
     exception, counter_overflow}};

static void reset(void) {
  /* a boot loader may have jumped here with its own vector table active */
  SCB_VTOR = (uintptr_t)&vector_table;
  counter_start();
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
  /* full access to coprocessors 10 and 11: the floating-point unit and, where there are any, vectors */
  SCB_CPACR |= 0xFU << 20;
  __asm volatile("dsb\n\tisb" ::: "memory");
#endif
  sections_load();
  host_exit(main());
}
