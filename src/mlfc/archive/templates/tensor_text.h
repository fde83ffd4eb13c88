/* Writing lines without the C library's printf, which boards may lack. This code is yours to use as you like.
 * SPDX-License-Identifier: 0BSD */
#ifndef TENSOR_TEXT_H_
#define TENSOR_TEXT_H_
#include <stdint.h>

/* Writes a number with digits of base 10 or 16, at least `digits` of them. */
void text_unsigned(uint64_t value, unsigned base, int digits);

/* Writes a number with six digits in the form of printf's %g; whole ones up to 32 bits in full. */
void text_number(double value);

#endif /* TENSOR_TEXT_H_ */
