/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>

#include "executor.h"

static void set_data(TVMGraphExecutor* executor, uint32_t id, void* data) {
  executor->storages[id].data = data;
  for (uint32_t i = 0; i < executor->num_tensors; ++i) {
    if (executor->storage_of_tensor[i] == id) executor->tensors[i].data = data;
  }
}

tvm_crt_error_t storage_own(TVMGraphExecutor* executor, uint32_t id) {
  Storage* storage = &executor->storages[id];
  if (storage->block.data != NULL) return kTvmErrorNoError;
  const tvm_crt_error_t error = tvm_crt_block_allocate(storage->bytes, &storage->block);
  if (error != kTvmErrorNoError) return error;
  if (storage->data != NULL) memcpy(storage->block.data, storage->data, storage->bytes);
  set_data(executor, id, storage->block.data);
  return kTvmErrorNoError;
}

tvm_crt_error_t storage_complete(TVMGraphExecutor* executor) {
  for (uint32_t id = 0; id < executor->num_storages && !executor->complete; ++id) {
    if (executor->storages[id].data != NULL) continue;
    const tvm_crt_error_t error = storage_own(executor, id);
    if (error != kTvmErrorNoError) return error;
  }
  executor->complete = true;
  return kTvmErrorNoError;
}

bool storage_can_link(const TVMGraphExecutor* executor, uint32_t id, size_t bytes) {
  const Storage* storage = &executor->storages[id];
  return !storage->written && bytes > 0 && storage->bytes == bytes;
}

void storage_link(TVMGraphExecutor* executor, uint32_t id, const void* data) {
  Storage* storage = &executor->storages[id];
  /* Firmware may set the filled tensor of TVMGraphExecutor_GetInput as the input: it is kept. */
  if (data == storage->block.data) return;
  tvm_crt_block_free(&storage->block);
  /* DLTensor has no const pointer. Storages that operators write to are never linked; storage_own copies. */
  union {
    const void* constant;
    void* data;
  } both = {data};
  set_data(executor, id, both.data);
}

bool storage_holds(const TVMGraphExecutor* executor, const void* address, size_t num_bytes) {
  for (uint32_t id = 0; id < executor->num_storages; ++id) {
    const Storage* storage = &executor->storages[id];
    if (tvm_crt_lies_in(address, num_bytes, storage->block.data, storage->bytes)) return true;
  }
  return false;
}
