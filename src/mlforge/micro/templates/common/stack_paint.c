/* SPDX-License-Identifier: 0BSD */
#include "stack_paint.h"

#include <stdint.h>

#include "stack_bottom.h"

enum { OWN_BYTES = 128 }; /* of the painter's own frame, which must stay as it is */

static const uint8_t paint = 0xC5U;
static uint8_t *base, *bottom;

void stack_paint(void) {
  base = (uint8_t *)__builtin_frame_address(0);
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
