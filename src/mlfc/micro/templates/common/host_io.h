/* Files and console of the host, through the connection of the board: a debugger or emulator (semihosting), the C
 * library, a serial line. SPDX-License-Identifier: 0BSD */
#ifndef HOST_IO_H_
#define HOST_IO_H_
#include <stddef.h>

/* Ends the program with an exit status. */
void host_exit(int status) __attribute__((noreturn));

/* Writes a text to the host's console. */
void host_print(const char *text);

/* Opens a file of the host; returns a handle, or -1. */
int host_open(const char *path, int for_writing);

/* Read or write exactly `nbytes` bytes; return 0, or -1 if fewer are available. */
int host_read(int handle, void *data, size_t nbytes);
int host_write(int handle, const void *data, size_t nbytes);

void host_close(int handle);

#endif /* HOST_IO_H_ */
