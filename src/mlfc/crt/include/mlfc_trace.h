/*
 * The tracing hook of generated code, enabled by -DMLFC_TRACE=1. It prints a line for each operator that ran:
 *
 *   trace <index> <checksum> <ticks>
 *
 * index     the operator's index in the order of execution, from 0, as in `mlfc inspect`. In a dynamic model, where an
 *           operator may run in each iteration of a loop or not at all, the index of its call in the code
 * checksum  the CRC-32 of its output's bytes when it ended, in eight hexadecimal digits
 * ticks     its duration by the C library's clock(), without printing and the checksum
 *
 * Parts of it can be replaced by your own functions:
 *
 *   -DMLFC_TRACE_TICKS=name    uint64_t name(void): another clock
 *   -DMLFC_TRACE_PRINT=name    void name(const char *line): prints a line, which includes its end of line
 *   -DMLFC_TRACE_RECORD=name   void name(int32_t index, const void *data, size_t nbytes, uint64_t ticks):
 *                                 receives every operator's output instead of printing
 *
 * This code is yours to use as you like. SPDX-License-Identifier: 0BSD
 */
#ifndef MLFC_TRACE_H_
#define MLFC_TRACE_H_
#include <stddef.h>
#include <stdint.h>

#define MLFC_TRACE_BEGIN(index) (mlfc_trace_started = MLFC_TRACE_TICKS())
#define MLFC_TRACE_END(index, data, nbytes)                      \
  (mlfc_trace_passed = MLFC_TRACE_TICKS() - mlfc_trace_started, \
   MLFC_TRACE_RECORD(index, data, nbytes, mlfc_trace_passed))

/* operators run one after another, so one start is enough */
static uint64_t mlfc_trace_started, mlfc_trace_passed;

#ifdef MLFC_TRACE_TICKS
uint64_t MLFC_TRACE_TICKS(void);
#else
#include <time.h>
#define MLFC_TRACE_TICKS mlfc_trace_clock
static uint64_t mlfc_trace_clock(void) { return (uint64_t)clock(); }
#endif

#ifdef MLFC_TRACE_RECORD
void MLFC_TRACE_RECORD(int32_t index, const void *data, size_t nbytes, uint64_t ticks);
#else
#include "mlfc_trace_line.h"
#define MLFC_TRACE_RECORD mlfc_trace_line
#endif

#endif /* MLFC_TRACE_H_ */
