/* What an AVR does beside the start-up code of its C library. SPDX-License-Identifier: 0BSD */
#include <avr/interrupt.h>

#include "counter.h"
#include "host_io.h"

int main(void);

/* the library's code runs these in order of their numbers: once there is a stack, and once data and bss are there */
void start_counter(void) __attribute__((naked, used, section(".init3")));
void start_main(void) __attribute__((naked, used, section(".init8")));

void start_counter(void) { counter_start(); }

/* the library calls main itself after this, and loses its status */
void start_main(void) {
  sei();
  host_exit(main());
}
