/* The host's files by Arm's semihosting interface, which RISC-V has taken over. SPDX-License-Identifier: 0BSD */
#include <stdint.h>
#include <string.h>

#include "host_io.h"
#include "semihosting_call.h"

enum { SYS_OPEN = 0x01, SYS_CLOSE = 0x02, SYS_WRITE0 = 0x04, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT_EXTENDED = 0x20 };
enum { MODE_READ_BINARY = 1, MODE_WRITE_BINARY = 5, APPLICATION_EXIT = 0x20026 };

void host_exit(int status) {
  const uintptr_t block[2] = {APPLICATION_EXIT, (uintptr_t)status};
  for (;;) {
    (void)semihosting_call(SYS_EXIT_EXTENDED, block);
  }
}

void host_print(const char *text) { (void)semihosting_call(SYS_WRITE0, text); }

int host_open(const char *path, int for_writing) {
  const uintptr_t block[3] = {(uintptr_t)path, for_writing ? MODE_WRITE_BINARY : MODE_READ_BINARY, strlen(path)};
  return (int)semihosting_call(SYS_OPEN, block);
}

int host_read(int handle, void *data, size_t nbytes) {
  const uintptr_t block[3] = {(uintptr_t)handle, (uintptr_t)data, nbytes};
  /* the result is the number of bytes that are missing */
  return semihosting_call(SYS_READ, block) == 0 ? 0 : -1;
}

int host_write(int handle, const void *data, size_t nbytes) {
  const uintptr_t block[3] = {(uintptr_t)handle, (uintptr_t)data, nbytes};
  return semihosting_call(SYS_WRITE, block) == 0 ? 0 : -1;
}

void host_close(int handle) {
  const uintptr_t block[1] = {(uintptr_t)handle};
  (void)semihosting_call(SYS_CLOSE, block);
}
