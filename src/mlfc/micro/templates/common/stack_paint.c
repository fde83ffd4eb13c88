/* SPDX-License-Identifier: 0BSD */
#include "stack_paint.h"

#include <stdint.h>

#include "stack_bottom.h"

enum { OWN_BYTES = 64 }; /* of the painter's own frame, which must stay as it is: unoptimized, up to 48 */

static const uint8_t paint = 0xC5U;
static uint8_t *base, *bottom;

void stack_paint(void) {
  /* the caller's stack pointer: what the caller calls next starts here, not below the painter's frame */
  base = (uint8_t *)__builtin_dwarf_cfa();
  bottom = stack_bottom();
  for (volatile uint8_t *at = bottom; at < (volatile uint8_t *)(base - OWN_BYTES); ++at) {
    *at = paint;
  }
}

size_t stack_used(void) {
  const uint8_t *at = bottom;
  while (at < base && *at == paint) {
    ++at;
  }
  return (size_t)(base - at);
}

int stack_ran_out(void) { return *bottom != paint; }
