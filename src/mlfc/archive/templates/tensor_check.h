/* Comparing and showing tensors, on the host and on boards. This code is yours to use as you like.
 * SPDX-License-Identifier: 0BSD */
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
  const char *name;
  enum tensor_kind kind;
  size_t count;
  const void *data;
};

/* What was found until now; starts as zeros. */
struct tensor_checks {
  unsigned long vectors;
  unsigned long passed;
  unsigned long failures; /* of runs, whose outputs are not known then */
  double largest;         /* difference */
};

/* Writes a text where people read it: a function of the program that uses this file. */
void tensor_write(const char *text);

/*
 * Compares the outputs of a run with what the module computed when the archive was made, and writes one line: PASS or
 * FAIL, the largest difference, and which element of which output has it.
 *
 * Integers must be equal. Floats may differ by what another order of rounding gives: by the tolerance of their kind
 * times the largest magnitude that was expected.
 */
void tensor_check(struct tensor_checks *checks, const char *module, size_t vector, const struct tensor *outputs,
                  const void *const *expected, size_t count);

/* Writes one line: the first elements, and a checksum of all bytes. */
void tensor_print(const char *module, const struct tensor *actual);

/* Writes that a run of a module failed. */
void tensor_failed(struct tensor_checks *checks, const char *module);

/* Writes one line with the verdict on all vectors; returns the exit status. */
int tensor_verdict(const struct tensor_checks *checks);

#endif /* TENSOR_CHECK_H_ */
