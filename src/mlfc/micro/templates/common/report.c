/* SPDX-License-Identifier: 0BSD */
#include "report.h"

#include <string.h>

#include "host_io.h"

static int write_number(int file, const char *name, uint64_t value) {
  char text[32];
  size_t place = sizeof text;
  text[--place] = '\n';
  do {
    text[--place] = (char)('0' + value % 10);
    value /= 10;
  } while (value != 0);
  text[--place] = ' ';
  if (host_write(file, name, strlen(name)) != 0) {
    return -1;
  }
  return host_write(file, text + place, sizeof text - place);
}

int report_write(const char *path, const struct measures *run) {
  const int file = host_open(path, 1);
  if (file == -1 || write_number(file, "startup", run->startup) != 0 || write_number(file, "ticks", run->ticks) != 0 ||
      write_number(file, "stack", run->stack) != 0) {
    return -1;
  }
  host_close(file);
  return 0;
}
