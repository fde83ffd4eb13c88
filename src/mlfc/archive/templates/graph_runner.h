/* A module of the graph executor, read from the archive. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#ifndef GRAPH_RUNNER_H_
#define GRAPH_RUNNER_H_
#include <stddef.h>
#include <tvm/runtime/crt/graph_executor.h>

/* Makes the runtime ready; once, before any module is opened. Returns 0, or prints what is wrong. */
int graph_start(void);

/* Reads these files of the extracted archive `folder`. Returns NULL and prints what is wrong. */
TVMGraphExecutor *graph_open(const char *folder, const char *graph_path, const char *params_path);

/* Copies `bytes` bytes to the input at `index`; returns 0 on success. */
int graph_set_input(TVMGraphExecutor *executor, int index, const void *data, size_t bytes);

/* Copies `bytes` bytes from the output at `index`; returns 0 on success. */
int graph_get_output(TVMGraphExecutor *executor, int index, void *data, size_t bytes);

#endif /* GRAPH_RUNNER_H_ */
