/* A serial line to the host. SPDX-License-Identifier: 0BSD */
#ifndef UART_H_
#define UART_H_
#include <stddef.h>
#include <stdint.h>

void uart_start(void);

/* Waits for a byte and returns it; -1 if the sender has gone. */
int uart_read(void);

/* Writes all bytes, waiting for room; returns 0, or -1 if the receiver has gone. */
int uart_write(const uint8_t *data, size_t nbytes);

#endif /* UART_H_ */
