/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>

#include "machine.h"

/* Word `number` of the current instruction. */
#define WORD(number) mlfc_vm_u32(at + (size_t)4 * (number))
#define TRY(call)                                \
  do {                                           \
    const int32_t tried = (call);                \
    if (tried != MLFC_VM_OK) return tried;       \
  } while (0)

#ifdef MLFC_TRACE
#include "mlfc_trace.h"

/* The place of a call of a kernel among those of the bytecode, from 0. */
static int32_t place_of(const struct vm_machine* machine, const uint8_t* call) {
  int32_t place = 0;
  for (const uint8_t* at = machine->vm->tables[VM_CODE]; at < call; at += (size_t)(mlfc_vm_u32(at) >> 8) * 4) {
    if ((mlfc_vm_u32(at) & 0xFF) == VM_INVOKE) ++place;
  }
  return place;
}
#else
#define MLFC_TRACE_BEGIN(index) ((void)0)
#define MLFC_TRACE_END(index, data, nbytes) ((void)0)
#endif
/* what a header may define beside the others: a run begins, and the numbers that the kernel was called with */
#ifndef MLFC_TRACE_RUN
#define MLFC_TRACE_RUN() ((void)0)
#define MLFC_TRACE_NUMBERS(numbers, count) ((void)0)
#endif

int32_t vm_fail(struct vm_machine* machine, int32_t code, int64_t a, int64_t b, int64_t c) {
  mlfc_vm_fail(machine->error, code, a, b, c);
  if (machine->frame != NULL) {
    const uint8_t* at = machine->frame->code;
    machine->error->function = machine->frame->function;
    for (; at < machine->at; at += (size_t)(mlfc_vm_u32(at) >> 8) * 4) ++machine->error->instruction;
  }
  return code;
}

static int32_t fail_about(struct vm_machine* machine, uint32_t string, int32_t code, int64_t a, int64_t b, int64_t c) {
  vm_fail(machine, code, a, b, c);
  machine->error->text = mlfc_vm_string(machine->vm, string);
  return code;
}

static int32_t get_integer(struct vm_machine* machine, uint32_t word, int64_t* value) {
  if ((word & VM_CONSTANT_BIT) != 0) {
    *value = mlfc_vm_pool(machine->vm, word);
    return MLFC_VM_OK;
  }
  if (!machine->frame->set[word]) return vm_fail(machine, MLFC_VM_UNSET, 0, 0, 0);
  *value = machine->frame->integers[word];
  return MLFC_VM_OK;
}

static void set_integer(struct vm_machine* machine, uint32_t word, int64_t value) {
  machine->frame->integers[word] = value;
  machine->frame->set[word] = 1;
}

/* Returns a tensor in a register, or makes one of a constant in `room`. */
static int32_t get_tensor(struct vm_machine* machine, uint32_t word, struct vm_tensor* room,
                          const struct vm_tensor** found) {
  if ((word & VM_CONSTANT_BIT) != 0) {
    const uint32_t number = word & ~VM_CONSTANT_BIT;
    const uint8_t* record = mlfc_vm_record(machine->vm, VM_CONSTANTS, number, VM_VALUE_BYTES);
    room->data = machine->vm->code->constants[number].data;
    room->bytes = machine->vm->code->constants[number].bytes;
    room->block = NULL;
    room->dtype = record[4];
    room->rank = record[5];
    room->flags = VM_SET;
    for (uint8_t axis = 0; axis < room->rank; ++axis) room->extents[axis] = mlfc_vm_i64(record + 8 + 8 * axis);
    *found = room;
    return MLFC_VM_OK;
  }
  *found = &machine->frame->tensors[word];
  return (*found)->flags != 0 ? MLFC_VM_OK : vm_fail(machine, MLFC_VM_UNSET, 0, 0, 0);
}

static int32_t get_list(struct vm_machine* machine, uint32_t word, struct vm_list** found) {
  *found = &machine->frame->lists[word];
  return (*found)->flags != 0 ? MLFC_VM_OK : vm_fail(machine, MLFC_VM_UNSET, 0, 0, 0);
}

static int32_t do_extent(struct vm_machine* machine, const uint8_t* at) {
  struct vm_tensor room;
  const struct vm_tensor* tensor;
  TRY(get_tensor(machine, WORD(2), &room, &tensor));
  if (WORD(3) >= tensor->rank) return vm_fail(machine, MLFC_VM_AXIS, WORD(3), tensor->rank, 0);
  set_integer(machine, WORD(1), tensor->extents[WORD(3)]);
  return MLFC_VM_OK;
}

static int32_t do_rank(struct vm_machine* machine, const uint8_t* at) {
  struct vm_tensor room;
  const struct vm_tensor* tensor;
  TRY(get_tensor(machine, WORD(2), &room, &tensor));
  set_integer(machine, WORD(1), tensor->rank);
  return MLFC_VM_OK;
}

/* Finds the bytes of an element whose dtype is an integer or bool. */
static int32_t find_element(struct vm_machine* machine, const struct vm_tensor* tensor, int64_t index, uint8_t** place) {
  int64_t count;
  if (tensor->dtype >= VM_FLOAT16) return vm_fail(machine, MLFC_VM_DTYPE, tensor->dtype, 0, 0);
  count = tensor->bytes / mlfc_vm_dtype_bytes[tensor->dtype];
  if (index < 0 || index >= count) return vm_fail(machine, MLFC_VM_ELEMENT, index, count, 0);
  *place = tensor->data + (size_t)index * mlfc_vm_dtype_bytes[tensor->dtype];
  return MLFC_VM_OK;
}

static int32_t do_element(struct vm_machine* machine, const uint8_t* at) {
  struct vm_tensor room;
  const struct vm_tensor* tensor;
  uint8_t* place;
  int64_t index;
  int64_t value;
  TRY(get_tensor(machine, WORD(2), &room, &tensor));
  TRY(get_integer(machine, WORD(3), &index));
  TRY(find_element(machine, tensor, index, &place));
  if (!vm_read_element(place, tensor->dtype, &value)) return vm_fail(machine, MLFC_VM_OVERFLOW, value, 0, 0);
  set_integer(machine, WORD(1), value);
  return MLFC_VM_OK;
}

static int32_t do_set_element(struct vm_machine* machine, const uint8_t* at) {
  const struct vm_tensor* tensor;
  uint8_t* place;
  int64_t index;
  int64_t value;
  TRY(get_tensor(machine, WORD(1), NULL, &tensor));
  TRY(get_integer(machine, WORD(2), &index));
  TRY(get_integer(machine, WORD(3), &value));
  if ((tensor->flags & VM_WRITABLE) == 0) return vm_fail(machine, MLFC_VM_READ_ONLY, -1, 0, 0);
  TRY(find_element(machine, tensor, index, &place));
  if (!vm_write_element(place, tensor->dtype, value)) return vm_fail(machine, MLFC_VM_OVERFLOW, value, 0, 0);
  return MLFC_VM_OK;
}

static int32_t do_require(struct vm_machine* machine, const uint8_t* at, uint32_t opcode) {
  int64_t value;
  int64_t low;
  int64_t high;
  TRY(get_integer(machine, WORD(1), &value));
  TRY(get_integer(machine, WORD(2), &low));
  if (opcode == VM_REQUIRE_EQUAL) {
    return value == low ? MLFC_VM_OK : fail_about(machine, WORD(3), MLFC_VM_EQUAL, value, low, 0);
  }
  TRY(get_integer(machine, WORD(3), &high));
  if (value >= low && value <= high) return MLFC_VM_OK;
  return fail_about(machine, WORD(4), MLFC_VM_RANGE, value, low, high);
}

static int32_t do_storage(struct vm_machine* machine, const uint8_t* at) {
  struct vm_storage made;
  struct vm_storage* target = &machine->frame->storages[WORD(1)];
  int64_t bytes;
  TRY(get_integer(machine, WORD(2), &bytes));
  if (bytes < 0) return vm_fail(machine, MLFC_VM_NEGATIVE, bytes, 0, 0);
  if (WORD(4) != VM_CPU) return vm_fail(machine, MLFC_VM_DEVICE, WORD(4), 0, 0);
  if (WORD(3) == VM_NO_OFFSET) {
    TRY(vm_allocate(machine, bytes, &made));
  } else {
    const int64_t offset = mlfc_vm_pool(machine->vm, WORD(3));
    const int64_t room = machine->vm->arena_bytes - offset;
    if (bytes > room) return vm_fail(machine, MLFC_VM_OUTSIDE, bytes, room, 0);
    made.data = machine->arena + (size_t)offset;
    made.block = NULL;
    made.bytes = bytes;
    made.flags = VM_SET | VM_WRITABLE;
  }
  vm_drop_storage(machine, target);
  *target = made;
  return MLFC_VM_OK;
}

/* `tensor` in a storage and `view` of a tensor: a dtype and extents at some bytes from the start. */
static int32_t do_tensor(struct vm_machine* machine, const uint8_t* at, uint32_t opcode, uint32_t length) {
  struct vm_tensor made;
  int64_t start;
  int64_t room;
  if (opcode == VM_TENSOR) {
    const struct vm_storage* storage = &machine->frame->storages[WORD(2)];
    if (storage->flags == 0) return vm_fail(machine, MLFC_VM_UNSET, 0, 0, 0);
    made.data = storage->data;
    made.block = storage->block;
    made.flags = storage->flags;
    room = storage->bytes;
  } else {
    struct vm_tensor constant;
    const struct vm_tensor* source;
    TRY(get_tensor(machine, WORD(2), &constant, &source));
    made.data = source->data;
    made.block = source->block;
    made.flags = source->flags;
    room = source->bytes;
  }
  TRY(get_integer(machine, WORD(3), &start));
  if (start < 0) return vm_fail(machine, MLFC_VM_NEGATIVE, start, 0, 0);
  if (start % MLFC_VM_ALIGNMENT != 0) return vm_fail(machine, MLFC_VM_MISALIGNED, start, 0, 0);
  made.dtype = (uint8_t)WORD(4);
  made.rank = (uint8_t)(length - 5);
  made.bytes = mlfc_vm_dtype_bytes[made.dtype];
  for (uint8_t axis = 0; axis < made.rank; ++axis) {
    TRY(get_integer(machine, WORD(5 + axis), &made.extents[axis]));
    if (made.extents[axis] < 0) return vm_fail(machine, MLFC_VM_NEGATIVE, made.extents[axis], 0, 0);
    if (!mlfc_vm_times(&made.bytes, made.extents[axis])) return vm_fail(machine, MLFC_VM_SIZE, made.extents[axis], 0, 0);
  }
  if (start > room || made.bytes > room - start) return vm_fail(machine, MLFC_VM_OUTSIDE, made.bytes, room - start, 0);
  made.data += (size_t)start;
  vm_set_tensor(machine, &machine->frame->tensors[WORD(1)], &made);
  return MLFC_VM_OK;
}

static int32_t do_move(struct vm_machine* machine, const uint8_t* at) {
  struct vm_tensor room;
  const struct vm_tensor* source;
  TRY(get_tensor(machine, WORD(2), &room, &source));
  vm_set_tensor(machine, &machine->frame->tensors[WORD(1)], source);
  return MLFC_VM_OK;
}

static int32_t do_copy(struct vm_machine* machine, const uint8_t* at) {
  struct vm_tensor room;
  const struct vm_tensor* target;
  const struct vm_tensor* source;
  TRY(get_tensor(machine, WORD(1), NULL, &target));
  TRY(get_tensor(machine, WORD(2), &room, &source));
  if ((target->flags & VM_WRITABLE) == 0) return vm_fail(machine, MLFC_VM_READ_ONLY, -1, 0, 0);
  if (target->bytes != source->bytes) return vm_fail(machine, MLFC_VM_SIZES, target->bytes, source->bytes, 0);
  if (source->bytes > 0) memmove(target->data, source->data, (size_t)source->bytes);
  return MLFC_VM_OK;
}

static int32_t do_paste(struct vm_machine* machine, const uint8_t* at) {
  struct vm_tensor room;
  const struct vm_tensor* target;
  const struct vm_tensor* source;
  int64_t start;
  TRY(get_tensor(machine, WORD(1), NULL, &target));
  TRY(get_integer(machine, WORD(2), &start));
  TRY(get_tensor(machine, WORD(3), &room, &source));
  if ((target->flags & VM_WRITABLE) == 0) return vm_fail(machine, MLFC_VM_READ_ONLY, -1, 0, 0);
  if (start < 0) return vm_fail(machine, MLFC_VM_NEGATIVE, start, 0, 0);
  if (start > target->bytes || source->bytes > target->bytes - start) {
    return vm_fail(machine, MLFC_VM_OUTSIDE, source->bytes, target->bytes - start, 0);
  }
  if (source->bytes > 0) memmove(target->data + (size_t)start, source->data, (size_t)source->bytes);
  return MLFC_VM_OK;
}

/* Whether `count` blocks of `bytes` are within memory of `room` bytes. All are positive or 0, the first two positive. */
static int blocks_fit(int64_t bytes, int64_t count, int64_t start, int64_t step, int64_t room) {
  if (bytes > room || start > room - bytes) return 0;
  return count == 1 || step <= (room - bytes - start) / (count - 1);
}

/* Blocks of one tensor, each some bytes behind the one before, copied to such of another one. */
static int32_t do_blocks(struct vm_machine* machine, const uint8_t* at) {
  static const uint8_t operands[6] = {2, 3, 5, 6, 7, 8};
  enum { START, STEP, ORIGIN, STRIDE, BYTES, COUNT };
  struct vm_tensor room;
  const struct vm_tensor* target;
  const struct vm_tensor* source;
  int64_t n[6];
  TRY(get_tensor(machine, WORD(1), NULL, &target));
  TRY(get_tensor(machine, WORD(4), &room, &source));
  for (int i = 0; i < 6; ++i) TRY(get_integer(machine, WORD(operands[i]), &n[i]));
  if ((target->flags & VM_WRITABLE) == 0) return vm_fail(machine, MLFC_VM_READ_ONLY, -1, 0, 0);
  for (int i = 0; i < 6; ++i) {
    if (n[i] < 0) return vm_fail(machine, MLFC_VM_NEGATIVE, n[i], 0, 0);
  }
  if (n[BYTES] == 0 || n[COUNT] == 0) return MLFC_VM_OK;
  /* blocks of the target never overlap, so their number is bounded by its bytes */
  if (n[COUNT] > target->bytes / n[BYTES] || !blocks_fit(n[BYTES], n[COUNT], n[START], n[STEP], target->bytes)) {
    return vm_fail(machine, MLFC_VM_OUTSIDE, n[BYTES], target->bytes, 0);
  }
  if (!blocks_fit(n[BYTES], n[COUNT], n[ORIGIN], n[STRIDE], source->bytes)) {
    return vm_fail(machine, MLFC_VM_OUTSIDE, n[BYTES], source->bytes, 0);
  }
  for (int64_t i = 0; i < n[COUNT]; ++i) {
    memmove(target->data + (size_t)(n[START] + i * n[STEP]), source->data + (size_t)(n[ORIGIN] + i * n[STRIDE]),
            (size_t)n[BYTES]);
  }
  return MLFC_VM_OK;
}

/* Sets a buffer of a kernel: a tensor, or a storage as workspace. */
static int32_t get_buffer(struct vm_machine* machine, uint32_t word, int is_written, uint32_t number) {
  mlfc_vm_buffer* buffer = &machine->buffers[number];
  struct vm_tensor room;
  const struct vm_tensor* tensor;
  if ((word & (VM_CONSTANT_BIT | VM_STORAGE_BIT)) == VM_STORAGE_BIT) {
    const struct vm_storage* storage = &machine->frame->storages[word & ~VM_STORAGE_BIT];
    if (storage->flags == 0) return vm_fail(machine, MLFC_VM_UNSET, 0, 0, 0);
    buffer->data = storage->data;
    buffer->bytes = storage->bytes;
    return MLFC_VM_OK;
  }
  TRY(get_tensor(machine, word, &room, &tensor));
  if (is_written && (tensor->flags & VM_WRITABLE) == 0) return vm_fail(machine, MLFC_VM_READ_ONLY, number, 0, 0);
  buffer->data = tensor->data;
  buffer->bytes = tensor->bytes;
  return MLFC_VM_OK;
}

static int32_t do_invoke(struct vm_machine* machine, const uint8_t* at) {
  const mlfc_vm_kernel_entry* kernel = &machine->vm->code->kernels[WORD(1)];
  int32_t status;
  for (uint32_t i = 0; i < kernel->buffers; ++i) {
    TRY(get_buffer(machine, WORD((size_t)2 + i), i >= kernel->reads, i));
  }
  for (uint32_t i = 0; i < kernel->numbers; ++i) {
    TRY(get_integer(machine, WORD((size_t)2 + kernel->buffers + i), &machine->numbers[i]));
  }
  MLFC_TRACE_BEGIN(place_of(machine, at));
  status = kernel->launch(machine->buffers, machine->numbers);
  if (status == 0) {
    /* its output is the first that it does not only read */
    MLFC_TRACE_END(place_of(machine, at), machine->buffers[kernel->reads].data,
                   (size_t)machine->buffers[kernel->reads].bytes);
    MLFC_TRACE_NUMBERS(machine->numbers, kernel->numbers);
    return MLFC_VM_OK;
  }
  return fail_about(machine, mlfc_vm_u32(mlfc_vm_record(machine->vm, VM_KERNELS, WORD(1), VM_KERNEL_BYTES)),
                    MLFC_VM_KERNEL, status, 0, 0);
}

static int32_t do_invoke_packed(struct vm_machine* machine, const uint8_t* at, uint32_t length) {
  int32_t status = -1;
  for (uint32_t i = 0; i < length - 2; ++i) {
    struct vm_tensor room;
    const struct vm_tensor* tensor;
    mlfc_vm_tensor* passed = &machine->packed[i];
    TRY(get_tensor(machine, WORD((size_t)2 + i), &room, &tensor));
    passed->data = tensor->data;
    passed->block = NULL;
    passed->dtype = tensor->dtype;
    passed->rank = tensor->rank;
    for (uint8_t axis = 0; axis < tensor->rank; ++axis) passed->extents[axis] = tensor->extents[axis];
  }
  if (machine->host->packed != NULL) {
    status = machine->host->packed(machine->host->context, mlfc_vm_string(machine->vm, WORD(1)), machine->packed,
                                   length - 2);
  }
  return status == 0 ? MLFC_VM_OK : fail_about(machine, WORD(1), MLFC_VM_PACKED, status, 0, 0);
}

static int32_t count_turn(struct vm_machine* machine) {
  const uint64_t limit = machine->host->turn_limit;
  ++machine->turns;
  if (limit == 0 || machine->turns <= limit) return MLFC_VM_OK;
  return vm_fail(machine, MLFC_VM_TURNS, limit > INT64_MAX ? INT64_MAX : (int64_t)limit, 0, 0);
}

/* Goes to a label. */
static int32_t do_jump(struct vm_machine* machine, uint32_t label) {
  const struct vm_frame* frame = machine->frame;
  const uint8_t* target = frame->code + (size_t)4 * mlfc_vm_u32(frame->labels + (size_t)4 * label);
  if (target <= machine->at) TRY(count_turn(machine));
  machine->at = target;
  return MLFC_VM_OK;
}

static int32_t do_call(struct vm_machine* machine, const uint8_t* at) {
  struct vm_frame* caller = machine->frame;
  const uint32_t parameters = mlfc_vm_parameter_count(machine->vm, WORD(1));
  TRY(count_turn(machine));
  for (uint32_t i = 0; i < parameters; ++i) {
    struct vm_tensor room;
    const struct vm_tensor* argument;
    TRY(get_tensor(machine, WORD((size_t)2 + i), &room, &argument));
  }
  TRY(vm_enter(machine, WORD(1)));
  machine->frame->call = at;
  for (uint32_t i = 0; i < parameters; ++i) {
    const uint32_t word = WORD((size_t)2 + i);
    struct vm_frame* callee = machine->frame;
    struct vm_tensor room;
    const struct vm_tensor* argument = NULL;
    machine->frame = caller;
    (void)get_tensor(machine, word, &room, &argument);
    machine->frame = callee;
    vm_set_tensor(machine, &callee->tensors[i], argument);
  }
  machine->at = machine->frame->code;
  return MLFC_VM_OK;
}

/* Writes the next values of states, from operand `first` on, to the host's memory: all or none. */
static int32_t keep_states(struct vm_machine* machine, const uint8_t* at, uint32_t first, uint32_t count) {
  for (int is_checked = 0; is_checked < 2; ++is_checked) {
    for (uint32_t i = 0; i < count; ++i) {
      struct vm_tensor room;
      const struct vm_tensor* result;
      mlfc_vm_tensor next;
      TRY(get_tensor(machine, WORD((size_t)1 + first + i), &room, &result));
      memset(&next, 0, sizeof(next));
      next.data = result->data;
      next.dtype = result->dtype;
      next.rank = result->rank;
      memcpy(next.extents, result->extents, result->rank * sizeof(next.extents[0]));
      if (is_checked) vm_keep(machine, &next, i);
      else TRY(vm_check_value(machine, VM_OUTPUTS, first + i, &next));
    }
  }
  return MLFC_VM_OK;
}

static int32_t return_to_host(struct vm_machine* machine, const uint8_t* at, uint32_t operands) {
  const uint32_t states = vm_own_states(machine, machine->frame->function);
  const uint32_t count = operands - states;
  int32_t status = MLFC_VM_OK;
  uint32_t done;
  for (done = 0; done < count && status == MLFC_VM_OK; ++done) {
    struct vm_tensor room;
    const struct vm_tensor* result;
    status = get_tensor(machine, WORD((size_t)1 + done), &room, &result);
    if (status != MLFC_VM_OK) break;
    vm_export(machine, result, &machine->outputs[done]);
  }
  if (status == MLFC_VM_OK && machine->frame->function == 0) {
    status = vm_check_values(machine, VM_OUTPUTS, machine->outputs);
  }
  if (status == MLFC_VM_OK) status = keep_states(machine, at, count, states);
  if (status == MLFC_VM_OK) return status;
  for (uint32_t i = 0; i < done; ++i) {
    vm_drop_block(machine, (struct vm_block*)machine->outputs[i].block);
    machine->outputs[i].block = NULL;
  }
  return status;
}

/* Returns to the caller; `machine->frame` is NULL if that is the host. */
static int32_t do_return(struct vm_machine* machine, const uint8_t* at, uint32_t length) {
  struct vm_frame* frame = machine->frame;
  const uint8_t* call = frame->call;
  const uint32_t parameters = mlfc_vm_u32(frame->record + VM_FUNCTION_PARAMETERS);
  if (frame->caller == NULL) {
    TRY(return_to_host(machine, at, length - 1));
  } else {
    for (uint32_t i = 0; i < length - 1; ++i) {
      struct vm_tensor room;
      const struct vm_tensor* result;
      const uint32_t target = mlfc_vm_u32(call + 4 * ((size_t)2 + parameters + i));
      TRY(get_tensor(machine, WORD((size_t)1 + i), &room, &result));
      vm_set_tensor(machine, &frame->caller->tensors[target], result);
    }
  }
  vm_leave(machine);
  if (machine->frame != NULL) machine->at = call + (size_t)4 * (mlfc_vm_u32(call) >> 8);
  return MLFC_VM_OK;
}

/* Finds a position of a list, counted from the end if it is negative; `past` is 1 where its end is one, too. */
static int32_t find_position(struct vm_machine* machine, const struct vm_list* list, uint32_t word, size_t past,
                             size_t* position) {
  const int64_t count = (int64_t)vm_list_length(list);
  int64_t index;
  TRY(get_integer(machine, word, &index));
  if (index < -count || index >= count + (int64_t)past) return vm_fail(machine, MLFC_VM_INDEX, index, count, 0);
  *position = (size_t)(index < 0 ? index + count : index);
  return MLFC_VM_OK;
}

static int32_t do_list(struct vm_machine* machine, const uint8_t* at, uint32_t opcode) {
  struct vm_tensor room;
  const struct vm_tensor* tensor;
  struct vm_list* list;
  size_t position;
  switch (opcode) {
    case VM_LIST:
      vm_drop_list(machine, &machine->frame->lists[WORD(1)]);
      machine->frame->lists[WORD(1)].flags = VM_SET;
      return MLFC_VM_OK;
    case VM_APPEND:
      TRY(get_list(machine, WORD(1), &list));
      TRY(get_tensor(machine, WORD(2), &room, &tensor));
      return vm_insert(machine, list, vm_list_length(list), tensor);
    case VM_INSERT:
      TRY(get_list(machine, WORD(1), &list));
      TRY(get_tensor(machine, WORD(3), &room, &tensor));
      TRY(find_position(machine, list, WORD(2), 1, &position));
      return vm_insert(machine, list, position, tensor);
    case VM_ERASE:
      TRY(get_list(machine, WORD(1), &list));
      TRY(find_position(machine, list, WORD(2), 0, &position));
      return vm_erase(machine, list, position);
    case VM_GET:
      TRY(get_list(machine, WORD(2), &list));
      TRY(find_position(machine, list, WORD(3), 0, &position));
      vm_set_tensor(machine, &machine->frame->tensors[WORD(1)], &list->items->tensors[position]);
      return MLFC_VM_OK;
    case VM_LENGTH:
      TRY(get_list(machine, WORD(2), &list));
      set_integer(machine, WORD(1), (int64_t)vm_list_length(list));
      return MLFC_VM_OK;
    default: /* VM_LIST_MOVE */
      TRY(get_list(machine, WORD(2), &list));
      if (WORD(1) == WORD(2)) return MLFC_VM_OK;
      return vm_share_list(machine, &machine->frame->lists[WORD(1)], list);
  }
}

static int32_t do_compute(struct vm_machine* machine, const uint8_t* at) {
  int64_t a;
  int64_t b;
  int64_t result = 0;
  int32_t status;
  TRY(get_integer(machine, WORD(3), &a));
  TRY(get_integer(machine, WORD(4), &b));
  status = vm_compute(WORD(1), a, b, &result);
  if (status != MLFC_VM_OK) return vm_fail(machine, status, a, b, 0);
  set_integer(machine, WORD(2), result);
  return MLFC_VM_OK;
}

/* Runs an instruction that the next one follows. */
static int32_t do_plain(struct vm_machine* machine, const uint8_t* at, uint32_t opcode, uint32_t length) {
  int64_t value;
  switch (opcode) {
    case VM_INTEGER:
      TRY(get_integer(machine, WORD(2), &value));
      set_integer(machine, WORD(1), value);
      return MLFC_VM_OK;
    case VM_COMPUTE:
      return do_compute(machine, at);
    case VM_EXTENT:
      return do_extent(machine, at);
    case VM_RANK:
      return do_rank(machine, at);
    case VM_ELEMENT:
      return do_element(machine, at);
    case VM_SET_ELEMENT:
      return do_set_element(machine, at);
    case VM_REQUIRE_RANGE:
    case VM_REQUIRE_EQUAL:
      return do_require(machine, at, opcode);
    case VM_STORAGE:
      return do_storage(machine, at);
    case VM_RELEASE:
      vm_drop_storage(machine, &machine->frame->storages[WORD(1)]);
      return MLFC_VM_OK;
    case VM_TENSOR:
    case VM_VIEW:
      return do_tensor(machine, at, opcode, length);
    case VM_MOVE:
      return do_move(machine, at);
    case VM_COPY:
      return do_copy(machine, at);
    case VM_PASTE:
      return do_paste(machine, at);
    case VM_BLOCKS:
      return do_blocks(machine, at);
    case VM_DROP:
      vm_drop_tensor(machine, &machine->frame->tensors[WORD(1)]);
      return MLFC_VM_OK;
    case VM_TO_DEVICE:
      return WORD(3) == VM_CPU ? do_move(machine, at) : vm_fail(machine, MLFC_VM_DEVICE, WORD(3), 0, 0);
    case VM_INVOKE:
      return do_invoke(machine, at);
    case VM_INVOKE_PACKED:
      return do_invoke_packed(machine, at, length);
    default:
      return do_list(machine, at, opcode);
  }
}

int32_t vm_execute(struct vm_machine* machine) {
  MLFC_TRACE_RUN();
  while (machine->frame != NULL) {
    const uint8_t* at = machine->at;
    const uint32_t word = WORD(0);
    int64_t value;
    switch (word & 0xFF) {
      case VM_JUMP:
        TRY(do_jump(machine, WORD(1)));
        break;
      case VM_BRANCH:
        TRY(get_integer(machine, WORD(1), &value));
        if (value != 0) {
          machine->at = at + 12;
        } else {
          TRY(do_jump(machine, WORD(2)));
        }
        break;
      case VM_CALL:
        TRY(do_call(machine, at));
        break;
      case VM_RETURN:
        TRY(do_return(machine, at, word >> 8));
        break;
      case VM_FAIL:
        return fail_about(machine, WORD(1), MLFC_VM_FAILED, 0, 0, 0);
      default:
        TRY(do_plain(machine, at, word & 0xFF, word >> 8));
        machine->at = at + (size_t)4 * (word >> 8);
        break;
    }
  }
  return MLFC_VM_OK;
}
