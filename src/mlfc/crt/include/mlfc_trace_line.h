/* The line that tracing prints for an operator: see mlfc_trace.h. This code is yours to use as you like.
 * SPDX-License-Identifier: 0BSD */
#ifndef MLFC_TRACE_LINE_H_
#define MLFC_TRACE_LINE_H_
#include <stddef.h>
#include <stdint.h>

#include "mlfc_checksum.h"

#ifdef MLFC_TRACE_PRINT
void MLFC_TRACE_PRINT(const char *line);
#else
#include <stdio.h>
#define MLFC_TRACE_PRINT mlfc_trace_print
static void mlfc_trace_print(const char *line) { (void)fputs(line, stdout); }
#endif

/* Writes a number that ends before `end` and returns its start; `digits` is the minimum number of digits. */
static char *mlfc_trace_number(char *end, uint64_t value, unsigned base, int digits) {
  do {
    *--end = "0123456789abcdef"[value % base];
    value /= base;
    --digits;
  } while (value != 0 || digits > 0);
  return end;
}

static void mlfc_trace_line(int32_t index, const void *data, size_t nbytes, uint64_t ticks) {
  char text[64];
  char *at = text + sizeof text;
  const char *word = "trace ";
  size_t letter = 6;
  *--at = '\0';
  *--at = '\n';
  at = mlfc_trace_number(at, ticks, 10, 1);
  *--at = ' ';
  at = mlfc_trace_number(at, mlfc_checksum(data, nbytes), 16, 8);
  *--at = ' ';
  at = mlfc_trace_number(at, (uint64_t)index, 10, 1);
  while (letter != 0) {
    *--at = word[--letter];
  }
  MLFC_TRACE_PRINT(at);
}

#endif /* MLFC_TRACE_LINE_H_ */
