/* The model's parameters in the program, so that hosts need not send them. SPDX-License-Identifier: 0BSD */
#ifndef PARAMETERS_H_
#define PARAMETERS_H_
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A block of the graph's memory that holds a parameter, and where in the data that is. */
struct parameter_place {
  int32_t storage;
  uint32_t offset;
};

extern const struct parameter_place parameter_places[];
extern const uint32_t parameter_count;
extern const uint32_t parameter_bytes;

/* Adds the global function by which hosts find parameters; 0 on success. */
int parameters_register(void);

/* Returns whether bytes are parameters, all of them. */
bool parameters_hold(const void *address, size_t nbytes);

#endif /* PARAMETERS_H_ */
