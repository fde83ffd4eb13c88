/* This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "tensor_text.h"

#include <math.h>

#include "tensor_check.h"

enum { DIGITS = 6, LONGEST = 24 };

void text_unsigned(uint64_t value, unsigned base, int digits) {
  char text[LONGEST];
  char *at = text + sizeof text;
  *--at = '\0';
  do {
    *--at = "0123456789abcdef"[value % base];
    value /= base;
    --digits;
  } while (value != 0 || digits > 0);
  tensor_write(at);
}

/* Writes digits with a point behind the first `whole` of them, without zeros at the end. */
static void write_digits(uint32_t digits, int count, int whole) {
  char text[2 * DIGITS + 2];
  char *at = text + sizeof text;
  int place;
  *--at = '\0';
  for (place = count; place > 0 || place >= whole; --place) {
    const char digit = (char)('0' + digits % 10);
    if (place > whole ? *at != '\0' || digit != '0' : 1) {
      *--at = digit;
    }
    digits /= 10;
    if (place == whole + 1 && *at != '\0') {
      *--at = '.';
    }
  }
  tensor_write(at);
}

static void write_scaled(double value) {
  int exponent = 0;
  uint32_t digits;
  while (value >= 10.0) {
    value /= 10.0;
    ++exponent;
  }
  while (value < 1.0) {
    value *= 10.0;
    --exponent;
  }
  digits = (uint32_t)(value * 1e5 + 0.5);
  if (digits >= 1000000U) { /* rounded up to the next power of ten */
    digits /= 10;
    ++exponent;
  }
  if (exponent >= -4 && exponent < DIGITS) {
    write_digits(digits, DIGITS, exponent + 1);
    return;
  }
  write_digits(digits, DIGITS, 1);
  tensor_write(exponent < 0 ? "e-" : "e+");
  text_unsigned((uint64_t)(exponent < 0 ? -exponent : exponent), 10, 2);
}

void text_number(double value) {
  if (isnan(value)) {
    tensor_write("nan");
    return;
  }
  if (value < 0.0) {
    tensor_write("-");
    value = -value;
  }
  if (isinf(value)) {
    tensor_write("inf");
  } else if (value < 4294967296.0 && value == (double)(uint32_t)value) {
    text_unsigned((uint32_t)value, 10, 1);
  } else {
    write_scaled(value);
  }
}
