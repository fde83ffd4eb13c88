/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief A run: its frames, registers and memory. */
#ifndef MLFC_CRT_VM_MACHINE_H_
#define MLFC_CRT_VM_MACHINE_H_

#include "file.h"

/*! \brief What a register, and an entry of a list, cost of the memory limit: no less than they have here. */
enum { VM_ENTRY_BYTES = 128 };

enum { VM_SET = 1, VM_WRITABLE = 2 };

/*! \brief Memory of the host's allocator, which tensors and storages share. */
struct vm_block {
  size_t references;
  int64_t bytes;
};

struct vm_tensor {
  uint8_t* data;
  /* NULL for tensors in the arena, inputs and constants */
  struct vm_block* block;
  int64_t bytes;
  int64_t extents[MLFC_VM_MAX_RANK];
  uint8_t dtype;
  uint8_t rank;
  uint8_t flags;
};

struct vm_storage {
  uint8_t* data;
  struct vm_block* block;
  int64_t bytes;
  uint8_t flags;
};

/*! \brief The entries of lists that are equal; a list that changes while others share them gets a copy first. */
struct vm_items {
  size_t references;
  size_t capacity;
  size_t count;
  struct vm_tensor tensors[1];
};

struct vm_list {
  /* NULL in an empty list */
  struct vm_items* items;
  uint8_t flags;
};

struct vm_frame {
  struct vm_frame* caller;
  /* the call in the caller that made this frame */
  const uint8_t* call;
  const uint8_t* record;
  const uint8_t* code;
  const uint8_t* labels;
  struct vm_tensor* tensors;
  int64_t* integers;
  struct vm_storage* storages;
  struct vm_list* lists;
  /* of integers: whether they are set */
  uint8_t* set;
  size_t bytes;
  uint32_t function;
};

struct vm_machine {
  const mlfc_vm* vm;
  const mlfc_vm_host* host;
  mlfc_vm_error* error;
  const mlfc_vm_tensor* inputs;
  mlfc_vm_tensor* outputs;
  uint8_t* arena;
  mlfc_vm_buffer* buffers;
  int64_t* numbers;
  mlfc_vm_tensor* packed;
  /* where the next frame goes, and the end of the work area */
  uint8_t* top;
  uint8_t* end;
  struct vm_frame* frame;
  /* the current instruction */
  const uint8_t* at;
  int64_t used;
  uint64_t turns;
  uint32_t depth;
};

/*! \brief Sets the error of the current instruction; returns its code. */
int32_t vm_fail(struct vm_machine* machine, int32_t code, int64_t a, int64_t b, int64_t c);

/*! \brief Counts memory against the limit. */
int32_t vm_count_memory(struct vm_machine* machine, int64_t bytes);

/*! \brief Makes a storage of zeros from the host's allocator. */
int32_t vm_allocate(struct vm_machine* machine, int64_t bytes, struct vm_storage* made);

void vm_drop_block(struct vm_machine* machine, struct vm_block* block);
void vm_drop_tensor(struct vm_machine* machine, struct vm_tensor* tensor);
void vm_drop_storage(struct vm_machine* machine, struct vm_storage* storage);
void vm_drop_list(struct vm_machine* machine, struct vm_list* list);

/*! \brief Lets a register hold a tensor, whose block it shares; the old one is dropped. */
void vm_set_tensor(struct vm_machine* machine, struct vm_tensor* target, const struct vm_tensor* source);

/*! \brief Inserts a tensor before a position that is in the list or at its end. */
int32_t vm_insert(struct vm_machine* machine, struct vm_list* list, size_t position, const struct vm_tensor* tensor);
int32_t vm_erase(struct vm_machine* machine, struct vm_list* list, size_t position);
int32_t vm_share_list(struct vm_machine* machine, struct vm_list* target, const struct vm_list* source);

static inline size_t vm_list_length(const struct vm_list* list) { return list->items == NULL ? 0 : list->items->count; }

/*! \brief Starts a function in a new frame, whose registers are unset. */
int32_t vm_enter(struct vm_machine* machine, uint32_t function);

/*! \brief Ends the current frame; what its registers hold is dropped. */
void vm_leave(struct vm_machine* machine);

/*! \brief Runs instructions until the first function returns. */
int32_t vm_execute(struct vm_machine* machine);

/*! \brief Checks inputs or outputs of the model, without states of the host, against what it declares. */
int32_t vm_check_values(struct vm_machine* machine, int section, const mlfc_vm_tensor* values);
int32_t vm_check_value(struct vm_machine* machine, int section, uint32_t number, const mlfc_vm_tensor* value);

/*! \brief Returns how many states of a function are in the host's memory, and neither inputs nor outputs. */
uint32_t vm_own_states(const struct vm_machine* machine, uint32_t function);

/*! \brief Sets registers to the states in the host's memory. */
void vm_states(const struct vm_machine* machine, struct vm_tensor* registers);

/*! \brief Writes the next value of a state, which was checked, to the host's memory. */
void vm_keep(const struct vm_machine* machine, const mlfc_vm_tensor* next, uint32_t number);

/*! \brief Hands a result to the caller, who holds its block from then on. */
void vm_export(struct vm_machine* machine, const struct vm_tensor* tensor, mlfc_vm_tensor* result);

/*! \brief Computes; returns MLFC_VM_OK, MLFC_VM_OVERFLOW or MLFC_VM_DIVISION. */
int32_t vm_compute(uint32_t operation, int64_t a, int64_t b, int64_t* result);

/*! \brief Reads and writes elements of integers and bool; returns 0 if the value does not fit. */
int vm_read_element(const uint8_t* at, uint8_t dtype, int64_t* value);
int vm_write_element(uint8_t* at, uint8_t dtype, int64_t value);

#endif /* MLFC_CRT_VM_MACHINE_H_ */
