/* What the hook of generated code does on a board: ticks of each operator. SPDX-License-Identifier: 0BSD */
#ifndef MLFORGE_TRACE_H_
#define MLFORGE_TRACE_H_
#include <stdint.h>

#include "counter.h"

extern uint64_t operator_ticks[];
extern uint64_t operator_started;

#define MLFORGE_TRACE_BEGIN(index) (operator_started = counter_ticks())
#define MLFORGE_TRACE_END(index, data, nbytes) (operator_ticks[index] = counter_ticks() - operator_started)

#endif /* MLFORGE_TRACE_H_ */
