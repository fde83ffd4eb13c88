/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The bytecode's tables where they are, and its instructions; as in support/bytecode of mlfc. */
#ifndef MLFC_CRT_VM_FILE_H_
#define MLFC_CRT_VM_FILE_H_

#include <mlfc_vm.h>

enum {
  VM_STRINGS,
  VM_SYMBOLS,
  VM_INPUTS,
  VM_OUTPUTS,
  VM_KERNELS,
  VM_CONSTANTS,
  VM_INTEGERS,
  VM_FUNCTIONS,
  VM_LABELS,
  VM_CODE,
  VM_STATES,
  VM_SECTIONS
};

enum { VM_SYMBOL_BYTES = 24, VM_VALUE_BYTES = 72, VM_KERNEL_BYTES = 16, VM_FUNCTION_BYTES = 48, VM_STATE_BYTES = 4 };

/*! \brief Offsets in the record of a function. */
enum {
  VM_FUNCTION_NAME = 0,
  VM_FUNCTION_PARAMETERS = 4,
  VM_FUNCTION_RESULTS = 8,
  VM_FUNCTION_TENSORS = 12,
  VM_FUNCTION_INTEGERS = 16,
  VM_FUNCTION_STORAGES = 20,
  VM_FUNCTION_LISTS = 24,
  VM_FUNCTION_FIRST_LABEL = 28,
  VM_FUNCTION_LABELS = 32,
  VM_FUNCTION_FIRST_WORD = 36,
  VM_FUNCTION_WORDS = 40,
  VM_FUNCTION_ZERO = 44
};

#define VM_CONSTANT_BIT 0x80000000u
#define VM_STORAGE_BIT 0x40000000u
#define VM_NO_OFFSET 0xFFFFFFFFu
/*! \brief Of a state that begins as zeros. */
#define VM_NO_CONSTANT 0xFFFFFFFFu
#define VM_CPU 1u

enum {
  VM_INTEGER = 1,
  VM_COMPUTE,
  VM_EXTENT,
  VM_ELEMENT,
  VM_SET_ELEMENT,
  VM_REQUIRE_RANGE,
  VM_REQUIRE_EQUAL,
  VM_STORAGE,
  VM_RELEASE,
  VM_TENSOR,
  VM_VIEW,
  VM_MOVE,
  VM_COPY,
  VM_DROP,
  VM_TO_DEVICE,
  VM_INVOKE,
  VM_INVOKE_PACKED,
  VM_JUMP,
  VM_BRANCH,
  VM_CALL,
  VM_RETURN,
  VM_FAIL,
  VM_LIST,
  VM_APPEND,
  VM_INSERT,
  VM_ERASE,
  VM_GET,
  VM_LENGTH,
  VM_LIST_MOVE,
  VM_PASTE,
  VM_BLOCKS,
  VM_RANK, /* since version 2 */
  VM_OPCODES
};

enum { VM_ADD, VM_SUB, VM_MUL, VM_FLOORDIV, VM_FLOORMOD, VM_MIN, VM_MAX, VM_EQ, VM_NE, VM_LT, VM_LE, VM_AND, VM_OR };
enum { VM_OPERATIONS = VM_OR + 1 };

/*! \brief Dtypes by number: those of integers and bool come first. */
enum { VM_BOOL, VM_INT8, VM_INT16, VM_INT32, VM_INT64, VM_UINT8, VM_UINT16, VM_UINT32, VM_UINT64, VM_FLOAT16 };
enum { VM_DTYPES = 23 };

/*! \brief Of a sequence: whether it is given, the extents of its tensors, and their bytes. */
enum { VM_PARTS = 3 };

/*! \brief The bytes of an element, by dtype. */
extern const uint8_t mlfc_vm_dtype_bytes[VM_DTYPES];

static inline uint32_t mlfc_vm_u32(const uint8_t* at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline int64_t mlfc_vm_i64(const uint8_t* at) {
  const uint64_t bits = (uint64_t)mlfc_vm_u32(at + 4) << 32 | mlfc_vm_u32(at);
  return bits <= INT64_MAX ? (int64_t)bits : -(int64_t)(UINT64_MAX - bits) - 1;
}

static inline const uint8_t* mlfc_vm_record(const mlfc_vm* vm, int section, uint32_t number, size_t size) {
  return vm->tables[section] + (size_t)number * size;
}

static inline const uint8_t* mlfc_vm_function_record(const mlfc_vm* vm, uint32_t number) {
  return mlfc_vm_record(vm, VM_FUNCTIONS, number, VM_FUNCTION_BYTES);
}

static inline int64_t mlfc_vm_pool(const mlfc_vm* vm, uint32_t word) {
  return mlfc_vm_i64(mlfc_vm_record(vm, VM_INTEGERS, word & ~VM_CONSTANT_BIT, 8));
}

/*! \brief Returns a string, which ends with a NUL. */
static inline const char* mlfc_vm_string(const mlfc_vm* vm, uint32_t number) {
  const size_t texts = ((size_t)vm->counts[VM_STRINGS] + 1) * 4;
  return (const char*)vm->tables[VM_STRINGS] + texts + mlfc_vm_u32(mlfc_vm_record(vm, VM_STRINGS, number, 4));
}

/*! \brief Sets an error; returns its code. */
int32_t mlfc_vm_fail(mlfc_vm_error* error, int32_t code, int64_t a, int64_t b, int64_t c);

/*! \brief Returns the record of a state: of the input that it is. */
static inline const uint8_t* mlfc_vm_state_record(const mlfc_vm* vm, uint32_t number) {
  const uint32_t first = vm->counts[VM_INPUTS] - vm->counts[VM_STATES];
  return mlfc_vm_record(vm, VM_INPUTS, first + number, VM_VALUE_BYTES);
}

/*! \brief Checks that states have fixed shapes, those of their first and next values; sets their bytes. */
int mlfc_vm_check_states(mlfc_vm* vm);

/*! \brief Returns the bytes of a fixed shape. */
int64_t mlfc_vm_fixed_bytes(const uint8_t* record);

/*! \brief Checks the instructions of all functions; sets what the interpreter needs to know of them. */
int32_t mlfc_vm_verify(mlfc_vm* vm, mlfc_vm_error* error);

/*! \brief Multiplies what is not negative; returns 0 if the product does not fit. */
static inline int mlfc_vm_times(int64_t* product, int64_t factor) {
  if (factor != 0 && *product > INT64_MAX / factor) return 0;
  *product *= factor;
  return 1;
}

#endif /* MLFC_CRT_VM_FILE_H_ */
