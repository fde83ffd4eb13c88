/* The UART that most RISC-V boards have. SPDX-License-Identifier: 0BSD */
#include "uart.h"
#include "uart_config.h"

/* Registers, a byte each; the first two hold the divisor while the line's settings say so. */
enum { DATA = 0, INTERRUPTS = 1, FIFO = 2, LINE = 3, STATE = 5 };
enum { FIFO_ENABLE_AND_CLEAR = 7, EIGHT_BITS = 3, DIVISOR_ACCESS = 0x80, RECEIVED = 1, SEND_IS_EMPTY = 0x20 };
enum { CLOCKS_PER_BIT = 16 };

static volatile uint8_t *uart(void) { return (volatile uint8_t *)UART_BASE; }

void uart_start(void) {
  const uint32_t divisor = UART_CLOCK_HZ / CLOCKS_PER_BIT / UART_BAUD;
  uart()[INTERRUPTS] = 0;
  /* if the clock is unknown, the boot loader has set the speed */
  if (divisor > 0) {
    uart()[LINE] = DIVISOR_ACCESS;
    uart()[DATA] = (uint8_t)divisor;
    uart()[INTERRUPTS] = (uint8_t)(divisor >> 8);
  }
  uart()[LINE] = EIGHT_BITS;
  uart()[FIFO] = FIFO_ENABLE_AND_CLEAR;
}

int uart_read(void) {
  while ((uart()[STATE] & RECEIVED) == 0) {
  }
  return uart()[DATA];
}

int uart_write(const uint8_t *data, size_t nbytes) {
  for (size_t i = 0; i < nbytes; ++i) {
    while ((uart()[STATE] & SEND_IS_EMPTY) == 0) {
    }
    uart()[DATA] = data[i];
  }
  return 0;
}
