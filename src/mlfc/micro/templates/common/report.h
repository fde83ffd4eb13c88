/* What a run took, as lines of a name and a number. SPDX-License-Identifier: 0BSD */
#ifndef REPORT_H_
#define REPORT_H_
#include <stddef.h>
#include <stdint.h>

struct measures {
  uint64_t startup; /* ticks from reset to the first inference */
  uint64_t ticks;   /* of the inference */
  size_t stack;     /* bytes of it */
};

/* Writes a file of the host; returns 0 on success. */
int report_write(const char *path, const struct measures *run);

#endif /* REPORT_H_ */
