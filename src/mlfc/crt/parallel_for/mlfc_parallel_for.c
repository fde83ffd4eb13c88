/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* Distribution of kernels' pieces by the application, such as on the cores of a microcontroller by an RTOS. */
#include <mlfc_parallel.h>
#include <stddef.h>

static mlfc_parallel_for_function* handed_in = NULL;

void mlfc_set_parallel_for(mlfc_parallel_for_function* function) { handed_in = function; }

int32_t mlfc_parallel_for(mlfc_task* task, const void* arguments, int32_t count, int32_t most, uint64_t scratch_bytes) {
  if (handed_in == NULL || count < 2 || most < 2) return task(arguments, 0, count, NULL);
  return handed_in(task, arguments, count, most, scratch_bytes);
}
