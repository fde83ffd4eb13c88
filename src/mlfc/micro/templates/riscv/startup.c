/* Start-up of a RISC-V core once it has a stack. SPDX-License-Identifier: 0BSD */
#include <stdint.h>

#include "counter.h"
#include "fault.h"
#include "host_io.h"
#include "sections.h"

int main(void);

void startup(void) __attribute__((noreturn));

void startup(void) {
  counter_start();
  sections_load();
  host_exit(main());
}
