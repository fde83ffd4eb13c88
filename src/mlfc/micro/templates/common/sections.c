/* SPDX-License-Identifier: 0BSD */
#include "sections.h"

#include <stdint.h>

struct copy {
  const uint32_t *from;
  uint32_t *to;
  uint32_t nbytes;
};

/* the linker script aligns all of it to words and makes the table */
extern const struct copy linker_copies[], linker_copies_end[];
extern uint32_t linker_bss_start[], linker_bss_end[];

void sections_load(void) {
  for (const struct copy *item = linker_copies; item != linker_copies_end; ++item) {
    /* volatile, or compilers call a memcpy that may go byte by byte */
    volatile uint32_t *to = item->to;
    for (uint32_t word = 0; word < item->nbytes / sizeof *to; ++word) {
      to[word] = item->from[word];
    }
  }
  for (volatile uint32_t *at = linker_bss_start; at != linker_bss_end; ++at) {
    *at = 0;
  }
}
