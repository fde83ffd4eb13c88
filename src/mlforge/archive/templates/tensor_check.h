/* Comparing and showing tensors. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#ifndef TENSOR_CHECK_H_
#define TENSOR_CHECK_H_
#include <stddef.h>

enum tensor_kind {
  TENSOR_BOOL,
  TENSOR_INT8,
  TENSOR_INT16,
  TENSOR_INT32,
  TENSOR_INT64,
  TENSOR_UINT8,
  TENSOR_UINT16,
  TENSOR_UINT32,
  TENSOR_UINT64,
  TENSOR_FLOAT16, /* bits of a half-precision float in 16 bits */
  TENSOR_BFLOAT16, /* upper half of a float's bits */
  TENSOR_FLOAT32,
  TENSOR_FLOAT64
};

/* An output of a module after a run. */
struct tensor {
  const char *module;
  const char *name;
  enum tensor_kind kind;
  size_t count;
  const void *data;
};

/*
 * Compares an output with what the module computed when the archive was made, and prints one line.
 *
 * Integers must be equal. Floats may differ by what another order of rounding gives: by the tolerance of their kind
 * times the largest magnitude that was expected. Returns 1 for a difference, 0 for none.
 */
int tensor_check(const struct tensor *actual, size_t vector, const void *expected);

/* Prints one line: the first elements, and a checksum of all bytes. */
void tensor_print(const struct tensor *actual);

/* Prints that a module reported a failure; returns 1. */
int tensor_failed(const char *module);

#endif /* TENSOR_CHECK_H_ */
