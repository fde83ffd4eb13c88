/* A call to the debugger or emulator; how the core makes it differs. SPDX-License-Identifier: 0BSD */
#ifndef SEMIHOSTING_CALL_H_
#define SEMIHOSTING_CALL_H_
#include <stdint.h>

/* Returns what the host answers; `block` holds the operation's arguments, each as wide as a register. */
intptr_t semihosting_call(uintptr_t operation, const void *block);

#endif /* SEMIHOSTING_CALL_H_ */
