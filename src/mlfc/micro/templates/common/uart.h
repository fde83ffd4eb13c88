/* A serial line to the host. SPDX-License-Identifier: 0BSD */
#ifndef UART_H_
#define UART_H_
#include <stddef.h>
#include <stdint.h>

void uart_start(void);

/* Waits for a byte and returns it; -1 when none will come any more. */
int uart_read(void);

/* Writes all bytes, waiting for room; returns 0, or -1 when nobody takes them any more. */
int uart_write(const uint8_t *data, size_t nbytes);

#endif /* UART_H_ */
