/* What a run took, as lines of a name and a number. SPDX-License-Identifier: 0BSD */
#ifndef REPORT_H_
#define REPORT_H_
#include <stddef.h>
#include <stdint.h>

/* Writes a file of the host with the ticks of the run and of each operator, and the bytes of stack; 0 on success. */
int write_report(const char *path, uint64_t ticks, size_t stack, const uint64_t *operator_ticks, int operators);

#endif /* REPORT_H_ */
