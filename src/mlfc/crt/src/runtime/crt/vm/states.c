/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>

#include "machine.h"

/* Of all states together, padded; on small machines, what can be counted. */
#define MOST_BYTES (SIZE_MAX / 4 < 0x7FFFFFFF ? (int64_t)(SIZE_MAX / 4) : 0x7FFFFFFF)

static size_t padded(size_t bytes) { return (bytes + MLFC_VM_ALIGNMENT - 1) / MLFC_VM_ALIGNMENT * MLFC_VM_ALIGNMENT; }

/* The bytes of a state and what pads it to the alignment of tensors. */
static size_t padded_bytes(const uint8_t* record) { return padded((size_t)mlfc_vm_fixed_bytes(record)); }

static uint32_t first_value(const mlfc_vm* vm, uint32_t number) {
  return mlfc_vm_u32(mlfc_vm_record(vm, VM_STATES, number, VM_STATE_BYTES));
}

/* Whether two records have one type: all but their names. */
static int same_type(const uint8_t* a, const uint8_t* b) { return memcmp(a + 4, b + 4, VM_VALUE_BYTES - 4) == 0; }

int mlfc_vm_check_states(mlfc_vm* vm) {
  const uint32_t count = vm->counts[VM_STATES];
  if (count > vm->counts[VM_INPUTS] || count > vm->counts[VM_OUTPUTS]) return 0;
  for (uint32_t number = 0; number < count; ++number) {
    const uint8_t* record = mlfc_vm_state_record(vm, number);
    const uint32_t after = vm->counts[VM_OUTPUTS] - count + number;
    const uint32_t first = first_value(vm, number);
    int64_t bytes = mlfc_vm_dtype_bytes[record[4]];
    for (uint8_t axis = 0; axis < record[5]; ++axis) {
      const int64_t extent = mlfc_vm_i64(record + 8 + 8 * axis);
      if (extent < 0 || !mlfc_vm_times(&bytes, extent) || bytes > MOST_BYTES) return 0;
    }
    if (!same_type(record, mlfc_vm_record(vm, VM_OUTPUTS, after, VM_VALUE_BYTES))) return 0;
    if (first != VM_NO_CONSTANT) {
      if (first >= vm->counts[VM_CONSTANTS]) return 0;
      if (!same_type(record, mlfc_vm_record(vm, VM_CONSTANTS, first, VM_VALUE_BYTES))) return 0;
    }
    if ((uint64_t)padded(vm->state_bytes) + padded((size_t)bytes) > MOST_BYTES) return 0;
    vm->state_bytes = padded(vm->state_bytes) + (size_t)bytes;
  }
  return 1;
}

size_t mlfc_vm_state_bytes(const mlfc_vm* vm) { return vm->state_bytes; }

void mlfc_vm_state_reset(const mlfc_vm* vm, void* state) {
  uint8_t* at = (uint8_t*)state;
  if (vm->state_bytes > 0) memset(state, 0, vm->state_bytes);
  for (uint32_t number = 0; number < vm->counts[VM_STATES]; ++number) {
    const uint8_t* record = mlfc_vm_state_record(vm, number);
    const uint32_t first = first_value(vm, number);
    const size_t bytes = (size_t)mlfc_vm_fixed_bytes(record);
    if (first != VM_NO_CONSTANT && bytes > 0) memcpy(at, vm->code->constants[first].data, bytes);
    at += padded_bytes(record);
  }
}

uint32_t vm_own_states(const struct vm_machine* machine, uint32_t function) {
  return function == 0 && machine->host->state != NULL ? machine->vm->counts[VM_STATES] : 0;
}

void vm_states(const struct vm_machine* machine, struct vm_tensor* registers) {
  uint8_t* at = (uint8_t*)machine->host->state;
  for (uint32_t number = 0; number < machine->vm->counts[VM_STATES]; ++number) {
    const uint8_t* record = mlfc_vm_state_record(machine->vm, number);
    struct vm_tensor* tensor = &registers[number];
    tensor->data = at;
    tensor->block = NULL;
    tensor->dtype = record[4];
    tensor->rank = record[5];
    tensor->bytes = mlfc_vm_fixed_bytes(record);
    for (uint8_t axis = 0; axis < record[5]; ++axis) tensor->extents[axis] = mlfc_vm_i64(record + 8 + 8 * axis);
    tensor->flags = VM_SET;
    at += padded_bytes(record);
  }
}

void vm_keep(const struct vm_machine* machine, const mlfc_vm_tensor* next, uint32_t number) {
  uint8_t* at = (uint8_t*)machine->host->state;
  size_t bytes;
  for (uint32_t before = 0; before < number; ++before) at += padded_bytes(mlfc_vm_state_record(machine->vm, before));
  bytes = (size_t)mlfc_vm_fixed_bytes(mlfc_vm_state_record(machine->vm, number));
  if (bytes > 0) memmove(at, next->data, bytes);
}
