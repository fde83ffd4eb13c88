/* Comparing and showing tensors. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "tensor_check.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tensor_text.h"

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

/* How one output differs from what was expected. */
struct difference {
  double largest;
  double allowed;
  size_t element; /* that has the largest */
  int is_fault;
};

static struct difference compare(const struct tensor *actual, const void *expected) {
  const size_t bytes = kinds[actual->kind].bytes;
  struct difference result = {0.0, 0.0, 0, 0};
  double magnitude = 0.0;
  size_t index, differing = 0;
  for (index = 0; index < actual->count; ++index) {
    const double found = element(actual->kind, actual->data, index);
    const double wanted = element(actual->kind, expected, index);
    const double difference = distance(found, wanted);
    /* 64-bit integers have more digits than a double, so their bytes decide */
    const int differs =
        memcmp((const char *)actual->data + index * bytes, (const char *)expected + index * bytes, bytes) != 0;
    if (difference > result.largest || (differs && differing == 0 && !(result.largest > 0.0))) {
      result.largest = difference;
      result.element = index;
    }
    differing += (size_t)differs;
    if (!isnan(wanted) && !isinf(wanted) && fabs(wanted) > magnitude) {
      magnitude = fabs(wanted);
    }
  }
  result.allowed = kinds[actual->kind].tolerance * magnitude;
  result.is_fault = kinds[actual->kind].tolerance > 0.0 ? result.largest > result.allowed : differing != 0;
  return result;
}

void tensor_check(struct tensor_checks *checks, const char *module, size_t vector, const struct tensor *outputs,
                  const void *const *expected, size_t count) {
  struct difference worst = {0.0, 0.0, 0, 0};
  size_t index, place = 0;
  for (index = 0; index < count; ++index) {
    const struct difference found = compare(&outputs[index], expected[index]);
    if (index == 0 || found.is_fault > worst.is_fault ||
        (found.is_fault == worst.is_fault && found.largest > worst.largest)) {
      worst = found;
      place = index;
    }
  }
  tensor_write(worst.is_fault ? "FAIL " : "PASS ");
  tensor_write(module);
  tensor_write(", vector ");
  text_unsigned(vector, 10, 1);
  tensor_write(": largest difference ");
  text_number(worst.largest);
  tensor_write(", ");
  text_number(worst.allowed);
  tensor_write(" allowed");
  if (worst.is_fault || worst.largest > 0.0) {
    tensor_write(", in element ");
    text_unsigned(worst.element, 10, 1);
    tensor_write(" of ");
    tensor_write(outputs[place].name);
  }
  tensor_write("\n");
  checks->vectors += 1;
  checks->passed += !worst.is_fault;
  if (worst.largest > checks->largest) {
    checks->largest = worst.largest;
  }
}

void tensor_print(const char *module, const struct tensor *actual) {
  const unsigned char *byte = actual->data;
  const size_t total = actual->count * kinds[actual->kind].bytes;
  uint32_t checksum = UINT32_C(2166136261); /* FNV-1a */
  size_t index;
  for (index = 0; index < total; ++index) {
    checksum = (checksum ^ byte[index]) * UINT32_C(16777619);
  }
  tensor_write(module);
  tensor_write(", zeros, ");
  tensor_write(actual->name);
  tensor_write(":");
  for (index = 0; index < actual->count && index < SHOWN_ELEMENTS; ++index) {
    tensor_write(" ");
    text_number(element(actual->kind, actual->data, index));
  }
  tensor_write(actual->count > SHOWN_ELEMENTS ? " ... checksum " : " checksum ");
  text_unsigned(checksum, 16, 8);
  tensor_write("\n");
}

void tensor_failed(struct tensor_checks *checks, const char *module) {
  tensor_write("FAIL ");
  tensor_write(module);
  tensor_write(": the module reported a failure\n");
  checks->failures += 1;
}

int tensor_verdict(const struct tensor_checks *checks) {
  const unsigned long run = checks->vectors + checks->failures;
  const unsigned long faults = run - checks->passed;
  if (checks->vectors == 0) {
    tensor_write(checks->failures ? "FAIL\n" : "done\n");
    return checks->failures != 0;
  }
  tensor_write(faults ? "FAIL " : "PASS ");
  text_unsigned(faults ? faults : run, 10, 1);
  tensor_write(" of ");
  text_unsigned(run, 10, 1);
  tensor_write(", largest difference ");
  text_number(checks->largest);
  tensor_write("\n");
  return faults != 0;
}
