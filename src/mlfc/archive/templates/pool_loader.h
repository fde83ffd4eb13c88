/* Constants that a program loads. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#ifndef POOL_LOADER_H_
#define POOL_LOADER_H_
#include <stddef.h>

/* Reads the whole file `path` of the archive extracted in `folder`, which has `size` bytes; returns 0 on success. */
int pool_load(const char *folder, const char *path, void *memory, size_t size);

#endif /* POOL_LOADER_H_ */
