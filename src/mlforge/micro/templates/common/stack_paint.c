/* SPDX-License-Identifier: 0BSD */
#include "stack_paint.h"

#include <stdint.h>

extern uint32_t linker_stack_bottom[];

enum { OWN_WORDS = 32 }; /* of the painter's own frame, which must stay as it is */

static const uint32_t paint = 0xC5C5C5C5U;
static uint32_t *base;

void stack_paint(void) {
  base = (uint32_t *)__builtin_frame_address(0);
  for (volatile uint32_t *at = linker_stack_bottom; at < (volatile uint32_t *)(base - OWN_WORDS); ++at) {
    *at = paint;
  }
}

size_t stack_used(void) {
  const uint32_t *at = linker_stack_bottom;
  while (at < base && *at == paint) {
    ++at;
  }
  return (size_t)((const uint8_t *)base - (const uint8_t *)at);
}
