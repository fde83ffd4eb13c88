/* Replaces the header of the Raspberry Pi Pico SDK: a thread is the second core; queues have one entry. */
#ifndef PICO_MULTICORE_H_
#define PICO_MULTICORE_H_
#include <stdint.h>

void multicore_launch_core1(void (*entry)(void));
void multicore_fifo_push_blocking(uint32_t data);
uint32_t multicore_fifo_pop_blocking(void);

/* for the test: the number of requests to the second core */
int asked_core1(void);
#endif
