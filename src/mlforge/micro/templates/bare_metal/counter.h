/* Time since counter_start in ticks of SysTick. Under an emulator that counts instructions, ticks stand for these.
 * SPDX-License-Identifier: 0BSD */
#ifndef COUNTER_H_
#define COUNTER_H_
#include <stdint.h>

void counter_start(void);

uint64_t counter_ticks(void);

/* SysTick's handler: the counter has 24 bits. */
void counter_overflow(void);

#endif /* COUNTER_H_ */
