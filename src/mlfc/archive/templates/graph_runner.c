/* A module of the graph executor, read from the archive. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "graph_runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/runtime/crt/crt.h>
#include <tvm/runtime/crt/module.h>
#include <tvm/runtime/crt/platform.h>

static TVMModuleHandle library;

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, TVMGetLastError());
  return 1;
}

int graph_start(void) {
  if (TVMPlatformInitialize() != kTvmErrorNoError || TVMInitializeRuntime() != kTvmErrorNoError ||
      TVMModCreateFromCModule(TVMSystemLibEntryPoint(), &library) != 0) {
    return fail("the runtime does not start");
  }
  return 0;
}

/* Returns the content of a file with a NUL behind it, to be freed; NULL and a message where it cannot be read. */
static char *read_file(const char *folder, const char *name, size_t *size) {
  const size_t length = strlen(folder) + strlen(name) + 2;
  char *path = malloc(length), *content = NULL;
  FILE *file;
  long end = -1;
  if (path == NULL) {
    return NULL;
  }
  snprintf(path, length, "%s/%s", folder, name);
  file = fopen(path, "rb");
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) {
    end = ftell(file);
    rewind(file);
  }
  if (end >= 0) {
    *size = (size_t)end;
    content = malloc(*size + 1);
    if (content != NULL && fread(content, 1, *size, file) == *size) {
      content[*size] = '\0';
    } else {
      free(content);
      content = NULL;
    }
  }
  if (file != NULL) {
    fclose(file);
  }
  if (content == NULL) {
    fprintf(stderr, "%s: cannot be read; run the demo in the extracted archive, or name its folder\n", path);
  }
  free(path);
  return content;
}

TVMGraphExecutor *graph_open(const char *folder, const char *graph_path, const char *params_path) {
  const DLDevice cpu = {kDLCPU, 0};
  TVMGraphExecutor *executor = NULL;
  size_t graph_size = 0, params_size = 0;
  char *graph = read_file(folder, graph_path, &graph_size);
  char *params = read_file(folder, params_path, &params_size);
  if (graph != NULL && params != NULL) {
    if (TVMGraphExecutor_Create(graph, library, &cpu, &executor) != 0) {
      fail(graph_path);
      executor = NULL;
    } else if (TVMGraphExecutor_LoadParams(executor, params, (uint32_t)params_size) != 0) {
      fail(params_path);
      TVMGraphExecutor_Release(&executor);
    }
  }
  free(graph);
  free(params);
  return executor;
}

static size_t bytes_of(const DLTensor *tensor) {
  size_t bytes = (tensor->dtype.bits * (size_t)tensor->dtype.lanes + 7) / 8;
  int axis;
  for (axis = 0; axis < tensor->ndim; ++axis) {
    bytes *= (size_t)tensor->shape[axis];
  }
  return bytes;
}

int graph_set_input(TVMGraphExecutor *executor, int index, const void *data, size_t bytes) {
  DLTensor *tensor = NULL;
  if (TVMGraphExecutor_GetInput(executor, index, &tensor) != 0 || bytes_of(tensor) != bytes) {
    return fail("an input does not fit");
  }
  if (bytes > 0) {
    memcpy((char *)tensor->data + tensor->byte_offset, data, bytes);
  }
  return 0;
}

int graph_get_output(TVMGraphExecutor *executor, int index, void *data, size_t bytes) {
  DLTensor tensor;
  memset(&tensor, 0, sizeof tensor);
  if (TVMGraphExecutor_GetOutput(executor, index, &tensor) != 0 || bytes_of(&tensor) != bytes) {
    return fail("an output does not fit");
  }
  if (bytes > 0) {
    memcpy(data, (const char *)tensor.data + tensor.byte_offset, bytes);
  }
  return 0;
}
