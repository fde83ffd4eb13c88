/* SPDX-License-Identifier: 0BSD */
#include "semihosting_call.h"

intptr_t semihosting_call(uintptr_t operation, const void *block) {
  register uintptr_t r0 __asm("r0") = operation;
  register const void *r1 __asm("r1") = block;
  __asm volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return (intptr_t)r0;
}
