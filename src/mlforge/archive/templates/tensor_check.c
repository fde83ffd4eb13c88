/* Comparing and showing tensors. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "tensor_check.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_ELEMENTS 8

/* bytes of an element, and how far floats may be from what was expected; 0 means that they must be equal */
static const struct {
  size_t bytes;
  double tolerance;
} kinds[] = {
    {1, 0.0}, {1, 0.0}, {2, 0.0}, {4, 0.0},  {8, 0.0},  {1, 0.0},  {2, 0.0},
    {4, 0.0}, {8, 0.0}, {2, 4e-3}, {2, 3e-2}, {4, 1e-4}, {8, 1e-4},
};

static double float16(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) ? -1.0 : 1.0;
  if (exponent == 0x1f) {
    return fraction ? (double)NAN : sign * (double)INFINITY;
  }
  return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static double bfloat16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return (double)value;
}

static double element(enum tensor_kind kind, const void *data, size_t index) {
  switch (kind) {
    case TENSOR_INT8:
      return ((const int8_t *)data)[index];
    case TENSOR_INT16:
      return ((const int16_t *)data)[index];
    case TENSOR_INT32:
      return ((const int32_t *)data)[index];
    case TENSOR_INT64:
      return (double)((const int64_t *)data)[index];
    case TENSOR_UINT16:
      return ((const uint16_t *)data)[index];
    case TENSOR_UINT32:
      return ((const uint32_t *)data)[index];
    case TENSOR_UINT64:
      return (double)((const uint64_t *)data)[index];
    case TENSOR_FLOAT16:
      return float16(((const uint16_t *)data)[index]);
    case TENSOR_BFLOAT16:
      return bfloat16(((const uint16_t *)data)[index]);
    case TENSOR_FLOAT32:
      return (double)((const float *)data)[index];
    case TENSOR_FLOAT64:
      return ((const double *)data)[index];
    case TENSOR_BOOL:
    case TENSOR_UINT8:
    default:
      return ((const uint8_t *)data)[index];
  }
}

/* Returns the distance of two elements; infinity where one is not a number or they are different infinities. */
static double distance(double actual, double expected) {
  if (isnan(actual) || isnan(expected)) {
    return isnan(actual) && isnan(expected) ? 0.0 : (double)INFINITY;
  }
  return isinf(actual) || isinf(expected) ? (actual < expected || actual > expected ? (double)INFINITY : 0.0)
                                          : fabs(actual - expected);
}

int tensor_check(const struct tensor *actual, size_t vector, const void *expected) {
  const size_t bytes = kinds[actual->kind].bytes;
  double largest = 0.0, magnitude = 0.0, allowed;
  size_t index, differing = 0;
  int fault;
  for (index = 0; index < actual->count; ++index) {
    const double found = element(actual->kind, actual->data, index);
    const double wanted = element(actual->kind, expected, index);
    const double difference = distance(found, wanted);
    /* 64-bit integers have more digits than a double, so their bytes decide */
    differing += memcmp((const char *)actual->data + index * bytes, (const char *)expected + index * bytes, bytes) != 0;
    largest = difference > largest ? difference : largest;
    if (!isnan(wanted) && !isinf(wanted) && fabs(wanted) > magnitude) {
      magnitude = fabs(wanted);
    }
  }
  allowed = kinds[actual->kind].tolerance * magnitude;
  fault = kinds[actual->kind].tolerance > 0.0 ? largest > allowed : differing != 0;
  printf("%s %s, vector %lu, %s: largest difference %g, %g allowed\n", fault ? "FAIL" : "PASS", actual->module,
         (unsigned long)vector, actual->name, largest, allowed);
  return fault;
}

void tensor_print(const struct tensor *actual) {
  const unsigned char *byte = actual->data;
  const size_t total = actual->count * kinds[actual->kind].bytes;
  uint32_t checksum = UINT32_C(2166136261); /* FNV-1a */
  size_t index;
  for (index = 0; index < total; ++index) {
    checksum = (checksum ^ byte[index]) * UINT32_C(16777619);
  }
  printf("%s, zeros, %s:", actual->module, actual->name);
  for (index = 0; index < actual->count && index < SHOWN_ELEMENTS; ++index) {
    printf(" %g", element(actual->kind, actual->data, index));
  }
  printf("%s checksum %08lx\n", actual->count > SHOWN_ELEMENTS ? " ..." : "", (unsigned long)checksum);
}

int tensor_failed(const char *module) {
  printf("FAIL %s: the module reported a failure\n", module);
  return 1;
}
