/* This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "pool_loader.h"

#include <stdio.h>

int pool_load(const char *folder, const char *path, void *memory, size_t size) {
  char place[1024];
  if ((size_t)snprintf(place, sizeof place, "%s/%s", folder, path) >= sizeof place) {
    return -1;
  }
  FILE *file = fopen(place, "rb");
  if (file == NULL) {
    fprintf(stderr, "%s cannot be read\n", place);
    return -1;
  }
  size_t found = fread(memory, 1, size, file);
  int whole = found == size && fgetc(file) == EOF;
  fclose(file);
  if (!whole) {
    fprintf(stderr, "%s does not have %lu bytes\n", place, (unsigned long)size);
  }
  return whole ? 0 : -1;
}
