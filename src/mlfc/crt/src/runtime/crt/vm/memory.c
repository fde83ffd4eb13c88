/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>

#include "machine.h"

/* A block and the bytes behind it that reach the alignment of tensors. */
#define BLOCK_BYTES (sizeof(struct vm_block) + MLFC_VM_ALIGNMENT - 1)
#define LIST_BYTES(capacity) (sizeof(struct vm_items) + ((capacity)-1) * sizeof(struct vm_tensor))
#define MOST_ITEMS ((SIZE_MAX - sizeof(struct vm_items)) / sizeof(struct vm_tensor))

int32_t vm_count_memory(struct vm_machine* machine, int64_t bytes) {
  const int64_t limit = machine->host->memory_limit;
  if (bytes > INT64_MAX - machine->used || (limit > 0 && machine->used + bytes > limit)) {
    return vm_fail(machine, MLFC_VM_MEMORY, bytes, limit, 0);
  }
  machine->used += bytes;
  return MLFC_VM_OK;
}

static void* take(struct vm_machine* machine, size_t bytes) {
  return machine->host->allocate == NULL ? NULL : machine->host->allocate(machine->host->context, bytes);
}

static void give(struct vm_machine* machine, void* memory) { machine->host->release(machine->host->context, memory); }

int32_t vm_allocate(struct vm_machine* machine, int64_t bytes, struct vm_storage* made) {
  struct vm_block* block = NULL;
  const int32_t status = vm_count_memory(machine, bytes);
  if (status != MLFC_VM_OK) return status;
  if ((uint64_t)bytes <= SIZE_MAX - BLOCK_BYTES) block = (struct vm_block*)take(machine, (size_t)bytes + BLOCK_BYTES);
  if (block == NULL) {
    machine->used -= bytes;
    return vm_fail(machine, MLFC_VM_ALLOCATE, bytes, 0, 0);
  }
  block->references = 1;
  block->bytes = bytes;
  made->block = block;
  made->data = (uint8_t*)(block + 1);
  made->data += (MLFC_VM_ALIGNMENT - (size_t)((uintptr_t)made->data % MLFC_VM_ALIGNMENT)) % MLFC_VM_ALIGNMENT;
  made->bytes = bytes;
  made->flags = VM_SET | VM_WRITABLE;
  return MLFC_VM_OK;
}

void vm_drop_block(struct vm_machine* machine, struct vm_block* block) {
  if (block == NULL || --block->references > 0) return;
  machine->used -= block->bytes;
  give(machine, block);
}

void vm_drop_tensor(struct vm_machine* machine, struct vm_tensor* tensor) {
  if (tensor->flags == 0) return;
  tensor->flags = 0;
  vm_drop_block(machine, tensor->block);
}

void vm_drop_storage(struct vm_machine* machine, struct vm_storage* storage) {
  if (storage->flags == 0) return;
  storage->flags = 0;
  vm_drop_block(machine, storage->block);
}

void vm_set_tensor(struct vm_machine* machine, struct vm_tensor* target, const struct vm_tensor* source) {
  struct vm_tensor old;
  if (target == source) return;
  old.block = target->block;
  old.flags = target->flags;
  if (source->block != NULL) ++source->block->references;
  *target = *source;
  vm_drop_tensor(machine, &old);
}

/* Frees entries that no list has any more; what lists cost is counted by the list, not here. */
static void drop_items(struct vm_machine* machine, struct vm_items* items) {
  if (items == NULL || --items->references > 0) return;
  for (size_t i = 0; i < items->count; ++i) vm_drop_tensor(machine, &items->tensors[i]);
  give(machine, items);
}

void vm_drop_list(struct vm_machine* machine, struct vm_list* list) {
  if (list->flags == 0) return;
  list->flags = 0;
  machine->used -= (int64_t)vm_list_length(list) * VM_ENTRY_BYTES;
  drop_items(machine, list->items);
  list->items = NULL;
}

int32_t vm_share_list(struct vm_machine* machine, struct vm_list* target, const struct vm_list* source) {
  struct vm_list shared;
  const int32_t status = vm_count_memory(machine, (int64_t)vm_list_length(source) * VM_ENTRY_BYTES);
  if (status != MLFC_VM_OK) return status;
  shared = *source;
  if (shared.items != NULL) ++shared.items->references;
  vm_drop_list(machine, target);
  *target = shared;
  return MLFC_VM_OK;
}

/* Makes the entries the list's own, with room for some; those that others share are copied. */
static int32_t own_items(struct vm_machine* machine, struct vm_list* list, size_t count) {
  struct vm_items* old = list->items;
  struct vm_items* made = NULL;
  size_t capacity = 4;
  if (old != NULL && old->references == 1 && old->capacity >= count) return MLFC_VM_OK;
  while (capacity < count && capacity <= MOST_ITEMS / 2) capacity *= 2;
  if (capacity >= count) made = (struct vm_items*)take(machine, LIST_BYTES(capacity));
  if (made == NULL) return vm_fail(machine, MLFC_VM_ALLOCATE, (int64_t)count * VM_ENTRY_BYTES, 0, 0);
  made->references = 1;
  made->capacity = capacity;
  made->count = old == NULL ? 0 : old->count;
  list->items = made;
  if (old == NULL) return MLFC_VM_OK;
  memcpy(made->tensors, old->tensors, old->count * sizeof(struct vm_tensor));
  if (old->references == 1) {
    give(machine, old);
    return MLFC_VM_OK;
  }
  --old->references;
  for (size_t i = 0; i < made->count; ++i) {
    if (made->tensors[i].block != NULL) ++made->tensors[i].block->references;
  }
  return MLFC_VM_OK;
}

int32_t vm_insert(struct vm_machine* machine, struct vm_list* list, size_t position, const struct vm_tensor* tensor) {
  const size_t count = vm_list_length(list);
  struct vm_tensor* entries;
  int32_t status = vm_count_memory(machine, VM_ENTRY_BYTES);
  if (status != MLFC_VM_OK) return status;
  status = own_items(machine, list, count + 1);
  if (status != MLFC_VM_OK) {
    machine->used -= VM_ENTRY_BYTES;
    return status;
  }
  entries = list->items->tensors;
  memmove(entries + position + 1, entries + position, (count - position) * sizeof(struct vm_tensor));
  entries[position] = *tensor;
  if (tensor->block != NULL) ++tensor->block->references;
  ++list->items->count;
  return MLFC_VM_OK;
}

int32_t vm_erase(struct vm_machine* machine, struct vm_list* list, size_t position) {
  const size_t count = vm_list_length(list);
  struct vm_tensor* entries;
  const int32_t status = own_items(machine, list, count);
  if (status != MLFC_VM_OK) return status;
  entries = list->items->tensors;
  vm_drop_tensor(machine, &entries[position]);
  memmove(entries + position, entries + position + 1, (count - position - 1) * sizeof(struct vm_tensor));
  --list->items->count;
  machine->used -= VM_ENTRY_BYTES;
  return MLFC_VM_OK;
}

void vm_export(struct vm_machine* machine, const struct vm_tensor* tensor, mlfc_vm_tensor* result) {
  (void)machine;
  memset(result, 0, sizeof(*result));
  result->data = tensor->data;
  result->block = tensor->block;
  if (tensor->block != NULL) ++tensor->block->references;
  for (uint8_t axis = 0; axis < tensor->rank; ++axis) result->extents[axis] = tensor->extents[axis];
  result->dtype = tensor->dtype;
  result->rank = tensor->rank;
}

void mlfc_vm_release(const mlfc_vm_host* host, mlfc_vm_tensor* outputs, uint32_t output_count) {
  for (uint32_t i = 0; i < output_count; ++i) {
    struct vm_block* block = (struct vm_block*)outputs[i].block;
    outputs[i].block = NULL;
    if (block != NULL && --block->references == 0) host->release(host->context, block);
  }
}
