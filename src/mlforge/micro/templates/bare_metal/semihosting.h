/* The host's files and streams, by way of the debugger or emulator. SPDX-License-Identifier: 0BSD */
#ifndef SEMIHOSTING_H_
#define SEMIHOSTING_H_
#include <stddef.h>
#include <stdint.h>

/* Ends the program with an exit status. */
void semihosting_exit(int status) __attribute__((noreturn));

/* Writes a text to the host's console. */
void semihosting_write(const char *text);

/* Opens a file of the host; returns a handle, or -1. */
int semihosting_open(const char *path, int for_writing);

/* Reads or writes exactly so many bytes; returns 0, or -1 where there are fewer. */
int semihosting_read_all(int handle, void *data, size_t nbytes);
int semihosting_write_all(int handle, const void *data, size_t nbytes);

void semihosting_close(int handle);

#endif /* SEMIHOSTING_H_ */
