/* What the hook of generated code does while a model is profiled: see mlforge_trace.c. */
#ifndef MLFORGE_TRACE_H_
#define MLFORGE_TRACE_H_
#include <stdint.h>

#define MLFORGE_TRACE_BEGIN(index) mlforge_trace_begin()
#define MLFORGE_TRACE_END(index) mlforge_trace_end(index)

void mlforge_trace_begin(void);
void mlforge_trace_end(int32_t index);

/* Record into `nanoseconds`, which has `count` elements; NULL and 0 end the recording. */
void mlforge_trace_record(uint64_t *nanoseconds, int32_t count);

#endif /* MLFORGE_TRACE_H_ */
