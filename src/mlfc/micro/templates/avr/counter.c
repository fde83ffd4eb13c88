/* Timer 1 counts cycles of the core's clock and interrupts when it starts again. SPDX-License-Identifier: 0BSD */
#include "counter.h"

#include <avr/interrupt.h>
#include <avr/io.h>
#include <util/atomic.h>

static volatile uint32_t overflows;

ISR(TIMER1_OVF_vect) { ++overflows; }

void counter_start(void) {
  TCCR1A = 0;
  TCNT1 = 0;
  TIMSK1 = _BV(TOIE1);
  TCCR1B = _BV(CS10);
}

uint64_t counter_ticks(void) {
  uint32_t high = 0;
  uint16_t low = 0;
  ATOMIC_BLOCK(ATOMIC_RESTORESTATE) {
    low = TCNT1;
    high = overflows;
    /* it may have started again since interrupts are off */
    if ((TIFR1 & _BV(TOV1)) != 0 && low < 0x8000U) {
      ++high;
    }
  }
  return (uint64_t)high << 16 | low;
}
