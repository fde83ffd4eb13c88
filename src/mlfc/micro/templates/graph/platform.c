/* Platform functions that the C runtime requires on a board that runs a graph. SPDX-License-Identifier: 0BSD */
#include <crt_config.h>
#include <stdio.h>
#include <tvm/runtime/crt/page_allocator.h>
#include <tvm/runtime/crt/platform.h>

#include "executor.h"
#include "graph.h"
#include "host_io.h"

enum { ABORTED = 71, PAGE_LOG2 = 5, PAGE = 1 << PAGE_LOG2, LISTS = 10, LIST_ALIGNMENT = 8 };

#define PAGES(bytes) (((bytes) + PAGE - 1) / PAGE)

/* The lists parsed from the graph's JSON, in one block until the executor exists ... */
#define TEXT_BYTES                                                                                          \
  (GRAPH_NODES * sizeof(GraphNode) + (GRAPH_REFERENCES + GRAPH_HEADS) * sizeof(GraphRef) +                   \
   (GRAPH_ARGUMENTS + GRAPH_NODES + 1 + GRAPH_ENTRIES) * sizeof(uint32_t) +                                  \
   GRAPH_ENTRIES * (sizeof(DLDataType) + sizeof(GraphShape)) + GRAPH_EXTENTS * sizeof(int64_t) + LISTS * LIST_ALIGNMENT)

/* ... the executor's ... */
#define EXECUTOR_BYTES                                                                                      \
  (sizeof(TVMGraphExecutor) + (GRAPH_ENTRIES + GRAPH_VIEWS) * (sizeof(DLTensor) + sizeof(uint32_t)) +        \
   GRAPH_STORAGES * sizeof(Storage) + GRAPH_CALLS * sizeof(Call) + GRAPH_ARGUMENTS * sizeof(Input) +         \
   GRAPH_HEADS * sizeof(uint32_t) + (GRAPH_EXTENTS + GRAPH_VIEWS) * sizeof(int64_t) +                        \
   GRAPH_CALL_ARGUMENTS * (sizeof(TVMValue) + sizeof(int)) + GRAPH_NAME_BYTES + LISTS * LIST_ALIGNMENT)

/* ... and the storages that operators write to, which the configuration counts in pages of this size. */
enum {
  SCRATCH_BLOCKS = 8, /* of one operator, each on its own page */
  NUM_PAGES = PAGES(TEXT_BYTES) + PAGES(EXECUTOR_BYTES) + PAGES(GRAPH_SCRATCH_BYTES) + SCRATCH_BLOCKS + GRAPH_STORAGE_PAGES,
  MANAGER_BYTES = 128 /* the allocator's own data, and padding for alignment */
};

static uint8_t pool[NUM_PAGES * (PAGE + sizeof(uint32_t)) + MANAGER_BYTES]
    __attribute__((aligned(16), section(".bss.noinit.platform")));
static MemoryManagerInterface *manager;

tvm_crt_error_t TVMPlatformInitialize(void) { return PageMemoryManagerCreate(&manager, pool, sizeof(pool), PAGE_LOG2); }

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void **out_ptr) {
  return manager->Allocate(manager, num_bytes, dev, out_ptr);
}

tvm_crt_error_t TVMPlatformMemoryFree(void *ptr, DLDevice dev) { return manager->Free(manager, ptr, dev); }

void TVMPlatformAbort(tvm_crt_error_t code) {
  (void)code;
  host_print("the C runtime stopped\n");
  host_exit(ABORTED);
}

size_t TVMPlatformFormatMessage(char *out_buf, size_t out_buf_size_bytes, const char *fmt, va_list args) {
  const int length = vsnprintf(out_buf, out_buf_size_bytes, fmt, args);
  return length < 0 ? 0 : (size_t)length;
}
