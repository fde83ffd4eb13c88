/* SPDX-License-Identifier: 0BSD */
#include "stack_bottom.h"

extern uint8_t linker_stack_bottom[];

uint8_t *stack_bottom(void) { return linker_stack_bottom; }
