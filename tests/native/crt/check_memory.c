/* Allocators: alignment, reuse, exhaustion, invalid frees. */
#include <string.h>
#include <tvm/runtime/crt/page_allocator.h>
#include <tvm/runtime/crt/stack_allocator.h>

#include "require.h"

static const DLDevice cpu = {kDLCPU, 0};

static void check_pages(void) {
  static uint8_t pool[1 << 14];
  MemoryManagerInterface* manager;
  void* blocks[256];
  void* other;
  size_t count = 0;
  REQUIRE(PageMemoryManagerCreate(&manager, pool, 64, 8) == kTvmErrorPlatformNoMemory && manager == NULL);
  REQUIRE(PageMemoryManagerCreate(&manager, pool, sizeof(pool), 2) == kTvmErrorPlatformCheckFailure);
  REQUIRE(PageMemoryManagerCreate(&manager, pool + 1, sizeof(pool) - 1, 8) == kTvmErrorNoError);
  while (count < 256 && manager->Allocate(manager, 200, cpu, &blocks[count]) == kTvmErrorNoError) {
    const uint8_t* block = (const uint8_t*)blocks[count];
    REQUIRE((uintptr_t)block % 64 == 0 && block > pool && block + 200 <= pool + sizeof(pool));
    REQUIRE(count == 0 || block - (const uint8_t*)blocks[count - 1] == 256);
    memset(blocks[count], 0xff, 200);
    ++count;
  }
  /* 64 pages of 256 bytes in 16 KiB, minus the pages for the manager's table and for alignment. */
  REQUIRE(count >= 60 && count < 64);
  REQUIRE(manager->Allocate(manager, 1, cpu, &other) == kTvmErrorPlatformNoMemory && other == NULL);
  REQUIRE(strstr(TVMGetLastError(), "1 pages") != NULL);
  /* Two adjacent free blocks make room for a block of two pages; two separate ones do not. */
  REQUIRE(manager->Free(manager, blocks[3], cpu) == kTvmErrorNoError);
  REQUIRE(manager->Free(manager, blocks[5], cpu) == kTvmErrorNoError);
  REQUIRE(manager->Allocate(manager, 257, cpu, &other) == kTvmErrorPlatformNoMemory);
  REQUIRE(manager->Free(manager, blocks[4], cpu) == kTvmErrorNoError);
  REQUIRE(manager->Allocate(manager, 3 * 256, cpu, &other) == kTvmErrorNoError && other == blocks[3]);
  REQUIRE(manager->Free(manager, blocks[4], cpu) == kTvmErrorPlatformCheckFailure);
  REQUIRE(manager->Free(manager, (uint8_t*)other + 1, cpu) == kTvmErrorPlatformCheckFailure);
  REQUIRE(manager->Free(manager, pool, cpu) == kTvmErrorPlatformCheckFailure);
  REQUIRE(manager->Free(manager, other, cpu) == kTvmErrorNoError);
  REQUIRE(manager->Free(manager, other, cpu) == kTvmErrorPlatformCheckFailure);
  REQUIRE(manager->Allocate(manager, SIZE_MAX, cpu, &other) == kTvmErrorPlatformNoMemory);
  REQUIRE(manager->Allocate(manager, 0, cpu, &other) == kTvmErrorNoError && other == blocks[3]);
}

static void check_stack(void) {
  static union {
    uint8_t bytes[1024];
    long double alignment;
  } memory;
  tvm_workspace_t stack;
  void* a;
  void* b;
  void* c;
  REQUIRE(StackMemoryManager_Init(&stack, memory.bytes + 3, sizeof(memory) - 3) == kTvmErrorNoError);
  REQUIRE((uintptr_t)stack.workspace % TVM_RUNTIME_ALLOC_ALIGNMENT_BYTES == 0 && stack.workspace_size == 1024 - 16);
  REQUIRE(StackMemoryManager_Allocate(&stack, 1, &a) == kTvmErrorNoError && a == stack.workspace);
  REQUIRE(StackMemoryManager_Allocate(&stack, 100, &b) == kTvmErrorNoError);
  REQUIRE((uintptr_t)b % TVM_RUNTIME_ALLOC_ALIGNMENT_BYTES == 0 && (uint8_t*)b >= (uint8_t*)a + 1);
  memset(b, 0xff, 100);
  REQUIRE(StackMemoryManager_Allocate(&stack, 2000, &c) == kTvmErrorPlatformNoMemory && c == NULL);
  REQUIRE(StackMemoryManager_Allocate(&stack, -1, &c) == kTvmErrorPlatformNoMemory);
#ifdef TVM_CRT_STACK_ALLOCATOR_ENABLE_LIFO_CHECK
  REQUIRE(StackMemoryManager_Free(&stack, a) == kTvmErrorPlatformStackAllocBadFree);
  ((uint8_t*)b)[108] ^= 1;
  REQUIRE(StackMemoryManager_Free(&stack, b) == kTvmErrorPlatformStackAllocBadFree);
  ((uint8_t*)b)[108] ^= 1;
#endif
  REQUIRE(StackMemoryManager_Free(&stack, memory.bytes) == kTvmErrorPlatformStackAllocBadFree);
  REQUIRE(StackMemoryManager_Free(&stack, b) == kTvmErrorNoError);
  REQUIRE(StackMemoryManager_Free(&stack, b) == kTvmErrorPlatformStackAllocBadFree);
  REQUIRE(StackMemoryManager_Allocate(&stack, 100, &c) == kTvmErrorNoError && c == b);
  REQUIRE(StackMemoryManager_Free(&stack, c) == kTvmErrorNoError);
  REQUIRE(StackMemoryManager_Allocate(&stack, 0, &c) == kTvmErrorNoError && c == b);
  REQUIRE(StackMemoryManager_Free(&stack, c) == kTvmErrorNoError);
  REQUIRE(StackMemoryManager_Free(&stack, a) == kTvmErrorNoError && stack.next_alloc == stack.workspace);
}

int main(void) {
  check_pages();
  check_stack();
  return 0;
}
