/* Calls of Arm's semihosting interface: operation in r0, block of arguments in r1. SPDX-License-Identifier: 0BSD */
#include "semihosting.h"

#include <string.h>

enum { SYS_OPEN = 0x01, SYS_CLOSE = 0x02, SYS_WRITE0 = 0x04, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT_EXTENDED = 0x20 };
enum { MODE_READ_BINARY = 1, MODE_WRITE_BINARY = 5, APPLICATION_EXIT = 0x20026 };

static int call(int operation, const void *block) {
  register int r0 __asm("r0") = operation;
  register const void *r1 __asm("r1") = block;
  __asm volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

void semihosting_exit(int status) {
  const uintptr_t block[2] = {APPLICATION_EXIT, (uintptr_t)status};
  for (;;) {
    (void)call(SYS_EXIT_EXTENDED, block);
  }
}

void semihosting_write(const char *text) { (void)call(SYS_WRITE0, text); }

int semihosting_open(const char *path, int for_writing) {
  const uintptr_t block[3] = {(uintptr_t)path, for_writing ? MODE_WRITE_BINARY : MODE_READ_BINARY, strlen(path)};
  return call(SYS_OPEN, block);
}

int semihosting_read_all(int handle, void *data, size_t nbytes) {
  const uintptr_t block[3] = {(uintptr_t)handle, (uintptr_t)data, nbytes};
  /* the result is the number of bytes that are missing */
  return call(SYS_READ, block) == 0 ? 0 : -1;
}

int semihosting_write_all(int handle, const void *data, size_t nbytes) {
  const uintptr_t block[3] = {(uintptr_t)handle, (uintptr_t)data, nbytes};
  return call(SYS_WRITE, block) == 0 ? 0 : -1;
}

void semihosting_close(int handle) {
  const uintptr_t block[1] = {(uintptr_t)handle};
  (void)call(SYS_CLOSE, block);
}
