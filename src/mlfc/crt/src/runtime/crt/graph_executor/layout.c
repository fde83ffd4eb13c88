/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "layout.h"

#include <stdbool.h>

enum { ALIGNMENT = 8 };

void* layout_take(char* base, size_t* used, size_t count, size_t size) {
  const bool full = *used > SIZE_MAX - ALIGNMENT;
  const size_t start = full ? SIZE_MAX : (*used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (full || count > (SIZE_MAX - start) / size) {
    *used = SIZE_MAX;
    return NULL;
  }
  *used = start + count * size;
  return base == NULL ? NULL : base + start;
}
