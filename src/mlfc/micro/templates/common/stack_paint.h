/* How much stack a call takes: the free part is painted before it and searched for the paint's end after it.
 * SPDX-License-Identifier: 0BSD */
#ifndef STACK_PAINT_H_
#define STACK_PAINT_H_
#include <stddef.h>

/* Paints what lies below the caller's frame. */
void stack_paint(void);

/* Returns the bytes below the caller's frame that were written since; what takes less than 64 counts as 64. */
size_t stack_used(void);

/* Tells whether it was written to as far as the stack may grow, and so perhaps to what lies below. */
int stack_ran_out(void);

#endif /* STACK_PAINT_H_ */
