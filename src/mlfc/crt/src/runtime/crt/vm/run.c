/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>

#include "machine.h"

/* What every part of the work area is a multiple of, but the arena. */
enum { STEP = 16 };

/* Adds to a size; what does not fit is SIZE_MAX, and stays it. */
static size_t plus(size_t size, uint64_t count, size_t each) {
  if (count > (SIZE_MAX - 2 * STEP) / each || size > SIZE_MAX - 2 * STEP - (size_t)count * each) return SIZE_MAX;
  return (size + (size_t)count * each + STEP - 1) / STEP * STEP;
}

static size_t frame_bytes(const uint8_t* record) {
  size_t bytes = plus(0, 1, sizeof(struct vm_frame));
  bytes = plus(bytes, mlfc_vm_u32(record + VM_FUNCTION_TENSORS), sizeof(struct vm_tensor));
  bytes = plus(bytes, mlfc_vm_u32(record + VM_FUNCTION_INTEGERS), sizeof(int64_t));
  bytes = plus(bytes, mlfc_vm_u32(record + VM_FUNCTION_STORAGES), sizeof(struct vm_storage));
  bytes = plus(bytes, mlfc_vm_u32(record + VM_FUNCTION_LISTS), sizeof(struct vm_list));
  return plus(bytes, mlfc_vm_u32(record + VM_FUNCTION_INTEGERS), 1);
}

/* The bytes of all that is there before the first frame, from an aligned start on. */
static size_t fixed_bytes(const mlfc_vm* vm) {
  size_t bytes = plus(0, vm->arena_bytes > 0 ? (uint64_t)vm->arena_bytes : 0, 1);
  bytes = plus(bytes, vm->most_buffers, sizeof(mlfc_vm_buffer));
  bytes = plus(bytes, vm->most_numbers, sizeof(int64_t));
  return plus(bytes, vm->most_packed, sizeof(mlfc_vm_tensor));
}

size_t mlfc_vm_work_bytes(const mlfc_vm* vm, uint32_t depth) {
  size_t most = 0;
  size_t all = 0;
  size_t frames = SIZE_MAX;
  size_t bytes;
  if (depth == 0 && vm->is_recursive) return 0;
  for (uint32_t number = 0; number < vm->counts[VM_FUNCTIONS]; ++number) {
    const size_t each = frame_bytes(mlfc_vm_function_record(vm, number));
    if (each > most) most = each;
    all = plus(all, 1, each);
  }
  /* no function is in its own calls, so one frame of each is enough */
  if (!vm->is_recursive) frames = all;
  if (depth != 0 && plus(0, depth, most) < frames) frames = plus(0, depth, most);
  bytes = plus(fixed_bytes(vm), 1, frames);
  bytes = plus(bytes, 1, MLFC_VM_ALIGNMENT);
  return bytes == SIZE_MAX ? 0 : bytes;
}

/* What a frame costs of the memory limit. */
static int64_t frame_cost(const uint8_t* record) {
  int64_t registers = 0;
  for (int offset = VM_FUNCTION_TENSORS; offset <= VM_FUNCTION_LISTS; offset += 4) {
    registers += mlfc_vm_u32(record + offset);
  }
  return registers * VM_ENTRY_BYTES;
}

static void* part(uint8_t** at, uint32_t count, size_t each) {
  uint8_t* start = *at;
  *at += plus(0, count, each);
  return start;
}

int32_t vm_enter(struct vm_machine* machine, uint32_t function) {
  const mlfc_vm* vm = machine->vm;
  const uint8_t* record = mlfc_vm_function_record(vm, function);
  const size_t bytes = frame_bytes(record);
  const uint32_t limit = machine->host->depth_limit;
  uint8_t* at = machine->top;
  struct vm_frame* frame;
  int32_t status;
  if (limit != 0 && machine->depth >= limit) return vm_fail(machine, MLFC_VM_DEPTH, limit, 0, 0);
  status = vm_count_memory(machine, frame_cost(record));
  if (status != MLFC_VM_OK) {
    machine->error->text = mlfc_vm_string(vm, mlfc_vm_u32(record + VM_FUNCTION_NAME));
    return status;
  }
  if (bytes > (size_t)(machine->end - machine->top)) {
    machine->used -= frame_cost(record);
    return vm_fail(machine, MLFC_VM_WORK, 0, 0, 0);
  }
  frame = (struct vm_frame*)part(&at, 1, sizeof(struct vm_frame));
  frame->tensors = (struct vm_tensor*)part(&at, mlfc_vm_u32(record + VM_FUNCTION_TENSORS), sizeof(struct vm_tensor));
  frame->integers = (int64_t*)part(&at, mlfc_vm_u32(record + VM_FUNCTION_INTEGERS), sizeof(int64_t));
  frame->storages =
      (struct vm_storage*)part(&at, mlfc_vm_u32(record + VM_FUNCTION_STORAGES), sizeof(struct vm_storage));
  frame->lists = (struct vm_list*)part(&at, mlfc_vm_u32(record + VM_FUNCTION_LISTS), sizeof(struct vm_list));
  frame->set = (uint8_t*)part(&at, mlfc_vm_u32(record + VM_FUNCTION_INTEGERS), 1);
  for (uint32_t i = 0; i < mlfc_vm_u32(record + VM_FUNCTION_TENSORS); ++i) frame->tensors[i].flags = 0;
  for (uint32_t i = 0; i < mlfc_vm_u32(record + VM_FUNCTION_STORAGES); ++i) frame->storages[i].flags = 0;
  for (uint32_t i = 0; i < mlfc_vm_u32(record + VM_FUNCTION_LISTS); ++i) {
    frame->lists[i].flags = 0;
    frame->lists[i].items = NULL;
  }
  memset(frame->set, 0, mlfc_vm_u32(record + VM_FUNCTION_INTEGERS));
  frame->caller = machine->frame;
  frame->call = NULL;
  frame->record = record;
  frame->code = mlfc_vm_record(vm, VM_CODE, mlfc_vm_u32(record + VM_FUNCTION_FIRST_WORD), 4);
  frame->labels = mlfc_vm_record(vm, VM_LABELS, mlfc_vm_u32(record + VM_FUNCTION_FIRST_LABEL), 4);
  frame->bytes = bytes;
  frame->function = function;
  machine->frame = frame;
  machine->top += bytes;
  ++machine->depth;
  return MLFC_VM_OK;
}

void vm_leave(struct vm_machine* machine) {
  struct vm_frame* frame = machine->frame;
  const uint8_t* record = frame->record;
  for (uint32_t i = 0; i < mlfc_vm_u32(record + VM_FUNCTION_TENSORS); ++i) {
    vm_drop_tensor(machine, &frame->tensors[i]);
  }
  for (uint32_t i = 0; i < mlfc_vm_u32(record + VM_FUNCTION_STORAGES); ++i) {
    vm_drop_storage(machine, &frame->storages[i]);
  }
  for (uint32_t i = 0; i < mlfc_vm_u32(record + VM_FUNCTION_LISTS); ++i) vm_drop_list(machine, &frame->lists[i]);
  machine->used -= frame_cost(record);
  machine->top -= frame->bytes;
  machine->frame = frame->caller;
  --machine->depth;
}

/* How many inputs or outputs the caller has. */
static uint32_t values_of(const struct vm_machine* machine, int section) {
  return machine->vm->counts[section] - vm_own_states(machine, 0);
}

/* Finds the first extent of this symbol: in the inputs, then in the outputs; there is one. */
static int64_t symbol_value(const struct vm_machine* machine, int64_t symbol) {
  for (int section = VM_INPUTS; section <= VM_OUTPUTS; ++section) {
    const mlfc_vm_tensor* values = section == VM_INPUTS ? machine->inputs : machine->outputs;
    for (uint32_t i = 0; i < values_of(machine, section); ++i) {
      const uint8_t* record = mlfc_vm_record(machine->vm, section, i, VM_VALUE_BYTES);
      for (uint8_t axis = 0; axis < record[5]; ++axis) {
        if (mlfc_vm_i64(record + 8 + 8 * axis) == symbol) return values[i].extents[axis];
      }
    }
  }
  return -1;
}

/* Returns whether an extent is as declared. */
static int fits(const struct vm_machine* machine, int64_t declared, int64_t extent) {
  const uint8_t* symbol;
  if (declared >= -1) return declared == -1 ? extent >= 0 : extent == declared;
  symbol = mlfc_vm_record(machine->vm, VM_SYMBOLS, (uint32_t)(-2 - declared), VM_SYMBOL_BYTES);
  return extent >= mlfc_vm_i64(symbol + 8) && extent <= mlfc_vm_i64(symbol + 16) &&
         extent == symbol_value(machine, declared);
}

int32_t vm_check_value(struct vm_machine* machine, int section, uint32_t number, const mlfc_vm_tensor* value) {
  const int32_t code = section == VM_INPUTS ? MLFC_VM_BAD_INPUT : MLFC_VM_BAD_OUTPUT;
  const uint8_t* record = mlfc_vm_record(machine->vm, section, number, VM_VALUE_BYTES);
  int64_t axis = 0;
  int64_t has = 0;
  if (value->dtype != record[4]) {
    axis = MLFC_VM_AXIS_DTYPE;
    has = value->dtype;
  } else if (value->rank != record[5]) {
    axis = MLFC_VM_AXIS_RANK;
    has = value->rank;
  } else {
    while (axis < record[5] && fits(machine, mlfc_vm_i64(record + 8 + 8 * axis), value->extents[axis])) ++axis;
    if (axis == record[5]) return MLFC_VM_OK;
    has = value->extents[axis];
  }
  vm_fail(machine, code, number, axis, has);
  machine->error->text = mlfc_vm_string(machine->vm, mlfc_vm_u32(record));
  return code;
}

int32_t vm_check_values(struct vm_machine* machine, int section, const mlfc_vm_tensor* values) {
  int32_t status = MLFC_VM_OK;
  for (uint32_t i = 0; i < values_of(machine, section) && status == MLFC_VM_OK; ++i) {
    status = vm_check_value(machine, section, i, &values[i]);
  }
  return status;
}

/* Sets a parameter to a tensor of the caller, which is only read. */
static int32_t set_parameter(struct vm_machine* machine, uint32_t number) {
  const mlfc_vm_tensor* input = &machine->inputs[number];
  struct vm_tensor* tensor = &machine->frame->tensors[number];
  int64_t axis = MLFC_VM_AXIS_DTYPE;
  if (input->dtype >= VM_DTYPES) return vm_fail(machine, MLFC_VM_BAD_INPUT, number, axis, input->dtype);
  axis = MLFC_VM_AXIS_RANK;
  if (input->rank > MLFC_VM_MAX_RANK) return vm_fail(machine, MLFC_VM_BAD_INPUT, number, axis, input->rank);
  tensor->data = (uint8_t*)input->data;
  tensor->block = NULL;
  tensor->dtype = input->dtype;
  tensor->rank = input->rank;
  tensor->bytes = mlfc_vm_dtype_bytes[input->dtype];
  for (axis = 0; axis < input->rank; ++axis) {
    const int64_t extent = input->extents[axis];
    tensor->extents[axis] = extent;
    if (extent < 0 || !mlfc_vm_times(&tensor->bytes, extent)) {
      return vm_fail(machine, MLFC_VM_BAD_INPUT, number, axis, extent);
    }
  }
  if ((uintptr_t)input->data % MLFC_VM_ALIGNMENT != 0 && tensor->bytes > 0) {
    return vm_fail(machine, MLFC_VM_BAD_INPUT, number, MLFC_VM_AXIS_ALIGNMENT, 0);
  }
  tensor->flags = VM_SET;
  return MLFC_VM_OK;
}

/* Shares out the work area; returns 0 if not even what precedes the frames fits. */
static int place_parts(struct vm_machine* machine, void* work, size_t work_bytes) {
  const mlfc_vm* vm = machine->vm;
  uint8_t* at = (uint8_t*)work;
  const size_t skipped = (MLFC_VM_ALIGNMENT - (size_t)((uintptr_t)at % MLFC_VM_ALIGNMENT)) % MLFC_VM_ALIGNMENT;
  const size_t fixed = fixed_bytes(vm);
  if (work_bytes < skipped || fixed > work_bytes - skipped) return 0;
  machine->end = at + work_bytes;
  at += skipped;
  machine->arena = at;
  at += plus(0, vm->arena_bytes > 0 ? (uint64_t)vm->arena_bytes : 0, 1);
  machine->buffers = (mlfc_vm_buffer*)part(&at, vm->most_buffers, sizeof(mlfc_vm_buffer));
  machine->numbers = (int64_t*)part(&at, vm->most_numbers, sizeof(int64_t));
  machine->packed = (mlfc_vm_tensor*)part(&at, vm->most_packed, sizeof(mlfc_vm_tensor));
  machine->top = at;
  return 1;
}

static int32_t start(struct vm_machine* machine, uint32_t function, uint32_t input_count) {
  int32_t status = vm_count_memory(machine, machine->vm->arena_bytes > 0 ? machine->vm->arena_bytes : 0);
  if (status == MLFC_VM_OK && function == 0) status = vm_check_values(machine, VM_INPUTS, machine->inputs);
  if (status == MLFC_VM_OK) status = vm_enter(machine, function);
  if (status != MLFC_VM_OK) return status;
  machine->at = machine->frame->code;
  for (uint32_t i = 0; i < input_count && status == MLFC_VM_OK; ++i) status = set_parameter(machine, i);
  if (vm_own_states(machine, function) > 0) vm_states(machine, machine->frame->tensors + input_count);
  return status == MLFC_VM_OK ? vm_execute(machine) : status;
}

int32_t mlfc_vm_run(const mlfc_vm* vm, uint32_t function, const mlfc_vm_tensor* inputs, uint32_t input_count,
                    mlfc_vm_tensor* outputs, uint32_t output_count, void* work, size_t work_bytes,
                    const mlfc_vm_host* host, mlfc_vm_error* error) {
  static const mlfc_vm_host no_host = {NULL, NULL, NULL, NULL, 0, 0, 0, NULL};
  struct vm_machine machine;
  uint32_t states;
  int32_t status;
  mlfc_vm_fail(error, MLFC_VM_OK, 0, 0, 0);
  memset(&machine, 0, sizeof(machine));
  machine.vm = vm;
  machine.host = host != NULL ? host : &no_host;
  states = vm_own_states(&machine, function);
  if (function >= vm->counts[VM_FUNCTIONS] || input_count != mlfc_vm_parameter_count(vm, function) - states ||
      output_count != mlfc_vm_result_count(vm, function) - states) {
    return mlfc_vm_fail(error, MLFC_VM_BAD_CALL, function, input_count, output_count);
  }
  if (states > 0 && (uintptr_t)machine.host->state % MLFC_VM_ALIGNMENT != 0) {
    return mlfc_vm_fail(error, MLFC_VM_BAD_INPUT, input_count, MLFC_VM_AXIS_ALIGNMENT, 0);
  }
  machine.error = error;
  machine.inputs = inputs;
  machine.outputs = outputs;
  if (!place_parts(&machine, work, work_bytes)) {
    return mlfc_vm_fail(error, MLFC_VM_WORK, (int64_t)work_bytes, 0, 0);
  }
  status = start(&machine, function, input_count);
  while (machine.frame != NULL) vm_leave(&machine);
  return status;
}
