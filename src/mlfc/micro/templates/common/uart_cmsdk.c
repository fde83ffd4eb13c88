/* The UART of Arm's Cortex-M System Design Kit. SPDX-License-Identifier: 0BSD */
#include "uart.h"
#include "uart_config.h"

typedef struct {
  volatile uint32_t data;
  volatile uint32_t state;
  volatile uint32_t control;
  volatile uint32_t interrupts;
  volatile uint32_t divisor;
} Registers;

enum { SEND_IS_FULL = 1, RECEIVE_IS_FULL = 2, SEND_ENABLE = 1, RECEIVE_ENABLE = 2, SMALLEST_DIVISOR = 16 };

static Registers *uart(void) { return (Registers *)UART_BASE; }

void uart_start(void) {
  const uint32_t divisor = UART_CLOCK_HZ / UART_BAUD;
  uart()->divisor = divisor < SMALLEST_DIVISOR ? SMALLEST_DIVISOR : divisor;
  uart()->control = SEND_ENABLE | RECEIVE_ENABLE;
}

int uart_read(void) {
  while ((uart()->state & RECEIVE_IS_FULL) == 0) {
  }
  return (int)(uart()->data & 0xFFU);
}

int uart_write(const uint8_t *data, size_t nbytes) {
  for (size_t i = 0; i < nbytes; ++i) {
    while ((uart()->state & SEND_IS_FULL) != 0) {
    }
    uart()->data = data[i];
  }
  return 0;
}
