/* SPDX-License-Identifier: 0BSD */
#include "semihosting_call.h"

intptr_t semihosting_call(uintptr_t operation, const void *block) {
  register uintptr_t a0 __asm("a0") = operation;
  register const void *a1 __asm("a1") = block;
  /* debuggers know the call by what stands around the break, uncompressed and in one page */
  __asm volatile(
      ".option push\n\t.option norvc\n\t.balign 16\n\t"
      "slli zero, zero, 0x1f\n\tebreak\n\tsrai zero, zero, 7\n\t.option pop"
      : "+r"(a0)
      : "r"(a1)
      : "memory");
  return (intptr_t)a0;
}
