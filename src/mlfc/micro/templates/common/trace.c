/* SPDX-License-Identifier: 0BSD */
/* a build that does not trace has no folder of these headers */
#ifdef MLFC_TRACE
#include "mlfc_trace.h"

#include <string.h>

#include "host_io.h"

#define MLFC_TRACE_PRINT trace_print
#include "mlfc_trace_line.h"

uint64_t trace_started, trace_ended, trace_spent;

static int is_told = 0; /* when runs begin */

/* files of the host; what cannot be opened is not written */
static int lines = -1, chosen = -1, tensors = -1;

void trace_print(const char *line) {
  host_print(line);
  if (lines != -1) {
    (void)host_write(lines, line, strlen(line));
  }
}

/* further runs continue the files */
static void begin_run(void) {
  trace_spent = 0;
  if (lines == -1) {
    lines = host_open("trace.txt", 1);
  }
  if (chosen != -1) {
    host_close(chosen);
  }
  chosen = host_open("chosen.bin", 0);
  if (chosen != -1 && tensors == -1) {
    tensors = host_open("tensors.bin", 1);
  }
}

void trace_run(void) {
  const uint64_t started = counter_ticks();
  is_told = 1;
  begin_run();
  trace_spent += counter_ticks() - started;
}

void trace_operator(int32_t index, const void *data, size_t nbytes) {
  uint8_t is_chosen = 0;
  if (index == 0 && !is_told) {
    begin_run();
  }
  mlfc_trace_line(index, data, nbytes, trace_ended - trace_started);
  if (chosen != -1 && host_read(chosen, &is_chosen, 1) == 0 && is_chosen == 1) {
    (void)host_write(tensors, data, nbytes);
  }
  trace_spent += counter_ticks() - trace_ended;
}

void trace_numbers(const int64_t *numbers, uint32_t count) {
  const uint64_t started = counter_ticks();
  char text[24];
  char *const end = text + sizeof text;
  if (lines != -1) {
    (void)host_write(lines, "numbers", 7);
    for (uint32_t i = 0; i < count; ++i) {
      char *at = mlfc_trace_number(end, (uint64_t)numbers[i], 10, 1);
      *--at = ' ';
      (void)host_write(lines, at, (size_t)(end - at));
    }
    (void)host_write(lines, "\n", 1);
  }
  trace_spent += counter_ticks() - started;
}
#else
typedef int trace_is_off; /* C files are not empty */
#endif
