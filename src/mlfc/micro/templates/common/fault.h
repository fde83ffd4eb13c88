/* The end of firmware whose core took an exception that nothing handles. SPDX-License-Identifier: 0BSD */
#ifndef FAULT_H_
#define FAULT_H_
#include <stdint.h>

/* Says the core's number of the exception and the address of the instruction, and ends the program. */
void fault(uintptr_t number, uintptr_t address) __attribute__((noreturn));

#endif /* FAULT_H_ */
