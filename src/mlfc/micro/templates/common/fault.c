/* SPDX-License-Identifier: 0BSD */
#include "fault.h"

#include "host_io.h"

enum { EXIT_STATUS = 70, DIGITS = 2 * sizeof(uintptr_t) };

static void print_number(const char *before, uintptr_t value) {
  char text[DIGITS + 1];
  text[DIGITS] = '\0';
  for (int place = DIGITS - 1; place >= 0; --place) {
    text[place] = "0123456789abcdef"[value & 15U];
    value >>= 4;
  }
  host_print(before);
  host_print(text);
}

void fault(uintptr_t number, uintptr_t address) {
  print_number("exception 0x", number);
  print_number(" at 0x", address);
  host_print("\n");
  host_exit(EXIT_STATUS);
}
