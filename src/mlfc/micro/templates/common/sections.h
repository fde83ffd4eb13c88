/* What start-up code owes the linker script before C may run. SPDX-License-Identifier: 0BSD */
#ifndef SECTIONS_H_
#define SECTIONS_H_

/* Copies initial data from flash to where it lives, and clears what must be zero. */
void sections_load(void);

#endif /* SECTIONS_H_ */
