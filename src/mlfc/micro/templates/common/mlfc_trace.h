/* What the hook of generated code does on a board: says what each operator computed and took.
 * SPDX-License-Identifier: 0BSD */
#ifndef MLFC_TRACE_H_
#define MLFC_TRACE_H_
#include <stddef.h>
#include <stdint.h>

#include "counter.h"

#define MLFC_TRACE_BEGIN(index) (trace_started = counter_ticks())
#define MLFC_TRACE_END(index, data, nbytes) (trace_ended = counter_ticks(), trace_operator(index, data, nbytes))
#define MLFC_TRACE_RUN() trace_run()
#define MLFC_TRACE_NUMBERS(numbers, count) trace_numbers(numbers, count)

extern uint64_t trace_started, trace_ended;

/* Ticks that tracing itself took in the last run. */
extern uint64_t trace_spent;

/* Says that a run begins. Who does not say it begins one with each operator of index 0. */
void trace_run(void);

/* Prints a line `trace <index> <checksum> <ticks>` to the console, and writes it to the host's file trace.txt. Where
 * the host has a file chosen.bin, of a byte for each operator, outputs of those that have a 1 go to tensors.bin. */
void trace_operator(int32_t index, const void *data, size_t nbytes);

/* Writes a line `numbers <number> ...` to trace.txt behind that of the operator. */
void trace_numbers(const int64_t *numbers, uint32_t count);

#endif /* MLFC_TRACE_H_ */
