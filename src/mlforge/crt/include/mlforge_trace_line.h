/* The line that tracing prints for an operator: see mlforge_trace.h. This code is yours to use as you like.
 * SPDX-License-Identifier: 0BSD */
#ifndef MLFORGE_TRACE_LINE_H_
#define MLFORGE_TRACE_LINE_H_
#include <stddef.h>
#include <stdint.h>

#include "mlforge_checksum.h"

#ifdef MLFORGE_TRACE_PRINT
void MLFORGE_TRACE_PRINT(const char *line);
#else
#include <stdio.h>
#define MLFORGE_TRACE_PRINT mlforge_trace_print
static void mlforge_trace_print(const char *line) { (void)fputs(line, stdout); }
#endif

/* Writes a number before `end` and returns where it starts; `digits` is the fewest that it has. */
static char *mlforge_trace_number(char *end, uint64_t value, unsigned base, int digits) {
  do {
    *--end = "0123456789abcdef"[value % base];
    value /= base;
    --digits;
  } while (value != 0 || digits > 0);
  return end;
}

static void mlforge_trace_line(int32_t index, const void *data, size_t nbytes, uint64_t ticks) {
  char text[64];
  char *at = text + sizeof text;
  const char *word = "trace ";
  size_t letter = 6;
  *--at = '\0';
  *--at = '\n';
  at = mlforge_trace_number(at, ticks, 10, 1);
  *--at = ' ';
  at = mlforge_trace_number(at, mlforge_checksum(data, nbytes), 16, 8);
  *--at = ' ';
  at = mlforge_trace_number(at, (uint64_t)index, 10, 1);
  while (letter != 0) {
    *--at = word[--letter];
  }
  MLFORGE_TRACE_PRINT(at);
}

#endif /* MLFORGE_TRACE_LINE_H_ */
