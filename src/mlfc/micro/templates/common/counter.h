/* Time since counter_start in ticks of a counter that the core has. Under an emulator that counts instructions, ticks
 * stand for these. SPDX-License-Identifier: 0BSD */
#ifndef COUNTER_H_
#define COUNTER_H_
#include <stdint.h>

/* Called once, by start-up code: before data and bss are there. */
void counter_start(void);

uint64_t counter_ticks(void);

/* The handler of the interrupt by which a narrow counter says that it started again. */
void counter_overflow(void);

#endif /* COUNTER_H_ */
