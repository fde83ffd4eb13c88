/* SPDX-License-Identifier: 0BSD */
#include "report.h"

#include <string.h>

#include "semihosting.h"

static int write_number(int file, const char *name, uint64_t value) {
  char text[32];
  size_t place = sizeof text;
  text[--place] = '\n';
  do {
    text[--place] = (char)('0' + value % 10);
    value /= 10;
  } while (value != 0);
  text[--place] = ' ';
  if (semihosting_write_all(file, name, strlen(name)) != 0) {
    return -1;
  }
  return semihosting_write_all(file, text + place, sizeof text - place);
}

int write_report(const char *path, uint64_t ticks, size_t stack, const uint64_t *operator_ticks, int operators) {
  const int file = semihosting_open(path, 1);
  if (file == -1 || write_number(file, "ticks", ticks) != 0 || write_number(file, "stack", stack) != 0) {
    return -1;
  }
  for (int index = 0; index < operators; ++index) {
    if (write_number(file, "operator", operator_ticks[index]) != 0) {
      return -1;
    }
  }
  semihosting_close(file);
  return 0;
}
