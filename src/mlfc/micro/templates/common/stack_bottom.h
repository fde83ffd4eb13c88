/* SPDX-License-Identifier: 0BSD */
#ifndef STACK_BOTTOM_H_
#define STACK_BOTTOM_H_
#include <stdint.h>

/* Returns the lowest address that the stack may grow to. */
uint8_t *stack_bottom(void);

#endif /* STACK_BOTTOM_H_ */
