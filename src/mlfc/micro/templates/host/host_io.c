/* This machine's own files, by the C library. SPDX-License-Identifier: 0BSD */
#include "host_io.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_FILES = 8 };

static FILE *files[MOST_FILES];

void host_exit(int status) { exit(status); }

void host_print(const char *text) { (void)fputs(text, stderr); }

int host_open(const char *path, int for_writing) {
  for (int handle = 0; handle < MOST_FILES; ++handle) {
    if (files[handle] == NULL) {
      files[handle] = fopen(path, for_writing ? "wb" : "rb");
      return files[handle] == NULL ? -1 : handle;
    }
  }
  return -1;
}

int host_read(int handle, void *data, size_t nbytes) { return fread(data, 1, nbytes, files[handle]) == nbytes ? 0 : -1; }

int host_write(int handle, const void *data, size_t nbytes) {
  return fwrite(data, 1, nbytes, files[handle]) == nbytes ? 0 : -1;
}

void host_close(int handle) {
  (void)fclose(files[handle]);
  files[handle] = NULL;
}
