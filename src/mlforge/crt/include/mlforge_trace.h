/*
 * What the hook of generated code does with -DMLFORGE_TRACE=1: it prints a line for every operator that ran,
 *
 *   trace <index> <checksum> <ticks>
 *
 * index     the operator's place in the order of execution, from 0, as in `mlforge inspect`
 * checksum  the CRC-32 of its output's bytes at the moment when it ended, eight hexadecimal digits
 * ticks     what it took, by the C library's clock(); printing and the checksum are not in it
 *
 * What it does can be replaced by functions of yours, by their names:
 *
 *   -DMLFORGE_TRACE_TICKS=name    uint64_t name(void): another clock
 *   -DMLFORGE_TRACE_PRINT=name    void name(const char *line): where lines go, each with its end of line
 *   -DMLFORGE_TRACE_RECORD=name   void name(int32_t index, const void *data, size_t nbytes, uint64_t ticks):
 *                                 instead of printing, sees every operator's output
 *
 * This code is yours to use as you like. SPDX-License-Identifier: 0BSD
 */
#ifndef MLFORGE_TRACE_H_
#define MLFORGE_TRACE_H_
#include <stddef.h>
#include <stdint.h>

#define MLFORGE_TRACE_BEGIN(index) (mlforge_trace_started = MLFORGE_TRACE_TICKS())
#define MLFORGE_TRACE_END(index, data, nbytes) \
  MLFORGE_TRACE_RECORD(index, data, nbytes, MLFORGE_TRACE_TICKS() - mlforge_trace_started)

/* operators run one after another, so one start is enough */
static uint64_t mlforge_trace_started;

#ifdef MLFORGE_TRACE_TICKS
uint64_t MLFORGE_TRACE_TICKS(void);
#else
#include <time.h>
#define MLFORGE_TRACE_TICKS mlforge_trace_clock
static uint64_t mlforge_trace_clock(void) { return (uint64_t)clock(); }
#endif

#ifdef MLFORGE_TRACE_RECORD
void MLFORGE_TRACE_RECORD(int32_t index, const void *data, size_t nbytes, uint64_t ticks);
#else
#include "mlforge_trace_line.h"
#define MLFORGE_TRACE_RECORD mlforge_trace_line
#endif

#endif /* MLFORGE_TRACE_H_ */
