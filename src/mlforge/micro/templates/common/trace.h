/* What firmware does when an operator has run, where it was built to trace: says what the operator computed and took.
 * SPDX-License-Identifier: 0BSD */
#ifndef TRACE_H_
#define TRACE_H_
#include <stddef.h>
#include <stdint.h>

/* Ticks that tracing itself took in the last run. */
extern uint64_t trace_spent;

/* Prints the line of mlforge_trace.h to the console, and writes it to the host's file trace.txt. Where the host has a
 * file chosen.bin, of a byte for each operator, the outputs of those that have a 1 go to its file tensors.bin. */
void trace_operator(int32_t index, const void *data, size_t nbytes, uint64_t ticks);

#endif /* TRACE_H_ */
