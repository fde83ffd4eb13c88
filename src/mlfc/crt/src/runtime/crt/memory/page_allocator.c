/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>
#include <tvm/runtime/crt/page_allocator.h>

#include "../common/error_text.h"

enum { MIN_PAGE_LOG2 = 4, MAX_PAGE_LOG2 = 30, MAX_ALIGNMENT = 64 };

/* At the start of the pool, followed by one word per page, then by the pages. */
typedef struct {
  MemoryManagerInterface interface;
  uint8_t* pages;
  size_t num_pages;
  size_t page_log2;
  /* At a block's first page, its number of pages. Zero at free pages and inside blocks; walking by blocks
   * distinguishes these. */
  uint32_t* block_pages;
} PageManager;

static size_t pages_for(const PageManager* manager, size_t num_bytes) {
  const size_t page = (size_t)1 << manager->page_log2;
  return num_bytes == 0 ? 1 : num_bytes / page + (num_bytes % page != 0);
}

/* First fit: iterates over blocks and counts free pages between them. */
static tvm_crt_error_t allocate(MemoryManagerInterface* interface, size_t num_bytes, DLDevice dev, void** out_ptr) {
  PageManager* manager = (PageManager*)(void*)interface;
  const size_t needed = pages_for(manager, num_bytes);
  size_t first_free = 0;
  size_t page = 0;
  (void)dev;
  *out_ptr = NULL;
  while (page < manager->num_pages && page - first_free < needed) {
    if (manager->block_pages[page] == 0) {
      ++page;
    } else {
      page += manager->block_pages[page];
      first_free = page;
    }
  }
  if (page - first_free < needed) {
    return tvm_crt_fail(kTvmErrorPlatformNoMemory, "no %u pages of memory in a row are free", (uint32_t)needed);
  }
  manager->block_pages[first_free] = (uint32_t)needed;
  *out_ptr = manager->pages + (first_free << manager->page_log2);
  return kTvmErrorNoError;
}

static tvm_crt_error_t release(MemoryManagerInterface* interface, void* ptr, DLDevice dev) {
  PageManager* manager = (PageManager*)(void*)interface;
  const uintptr_t offset = (uintptr_t)ptr - (uintptr_t)manager->pages;
  const size_t page = (size_t)(offset >> manager->page_log2);
  (void)dev;
  if ((uintptr_t)ptr < (uintptr_t)manager->pages || page >= manager->num_pages ||
      (offset & (((uintptr_t)1 << manager->page_log2) - 1)) != 0 || manager->block_pages[page] == 0) {
    return tvm_crt_fail(kTvmErrorPlatformCheckFailure, "memory is freed that was not allocated");
  }
  manager->block_pages[page] = 0;
  return kTvmErrorNoError;
}

static uintptr_t round_up(uintptr_t value, uintptr_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

tvm_crt_error_t PageMemoryManagerCreate(MemoryManagerInterface** manager, uint8_t* memory_pool,
                                        size_t memory_pool_size_bytes, size_t page_size_bytes_log2) {
  *manager = NULL;
  if (page_size_bytes_log2 < MIN_PAGE_LOG2 || page_size_bytes_log2 > MAX_PAGE_LOG2) {
    return tvm_crt_fail(kTvmErrorPlatformCheckFailure, "a page has 16 bytes to 1 GiB");
  }
  const size_t page = (size_t)1 << page_size_bytes_log2;
  const size_t alignment = page < MAX_ALIGNMENT ? page : MAX_ALIGNMENT;
  const uintptr_t start = (uintptr_t)memory_pool;
  const size_t before = (size_t)(round_up(start, sizeof(void*)) - start);
  const size_t overhead = before + sizeof(PageManager) + alignment;
  if (memory_pool == NULL || memory_pool_size_bytes < overhead + page + sizeof(uint32_t)) {
    return tvm_crt_fail(kTvmErrorPlatformNoMemory, "a memory pool of %u bytes has no room for a page",
                        (uint32_t)memory_pool_size_bytes);
  }
  const size_t num_pages = (memory_pool_size_bytes - overhead) / (page + sizeof(uint32_t));
  PageManager* created = (PageManager*)(void*)(memory_pool + before);
  created->interface.Allocate = allocate;
  created->interface.Free = release;
  created->num_pages = num_pages;
  created->page_log2 = page_size_bytes_log2;
  created->block_pages = (uint32_t*)(void*)(created + 1);
  memset(created->block_pages, 0, num_pages * sizeof(uint32_t));
  const uintptr_t table_end = (uintptr_t)(created->block_pages + num_pages);
  created->pages = memory_pool + (size_t)(round_up(table_end, alignment) - start);
  *manager = &created->interface;
  return kTvmErrorNoError;
}
