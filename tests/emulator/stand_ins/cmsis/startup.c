/* In place of the component Device:Startup: the vector table, the floating-point unit, and the C library's start. */
#include <stdint.h>

extern uint32_t __stack[];

void _start(void);

static void reset(void) {
  *(volatile uint32_t *)0xE000ED88U |= 0xFU << 20;
  __asm volatile("dsb\n\tisb" ::: "memory");
  _start();
}

static void fault(void) {
  for (;;) {
    __asm volatile("bkpt 1");
  }
}

const struct {
  uint32_t *stack;
  void (*handlers[15])(void);
} vectors __attribute__((section(".vectors"), used)) = {__stack, {reset, fault, fault}};
