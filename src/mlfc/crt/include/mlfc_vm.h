/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*!
 * \brief The virtual machine: runs models whose shapes or control flow depend on their inputs.
 *
 * `mlfc_vm_load` checks bytecode once, where it is; `mlfc_vm_run` runs it. There is no heap: registers, arguments and
 * the arena are in memory of the caller. Where an executable is not bounded, or has lists, storage comes from the
 * caller's functions.
 */
#ifndef MLFC_VM_H_
#define MLFC_VM_H_

#include <mlfc_vm_code.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MLFC_VM_MAX_RANK = 8, MLFC_VM_ALIGNMENT = 64 };

/*! \brief What functions return, and what is in `code` of an error. Values are those of its `values`. */
enum {
  MLFC_VM_OK = 0,
  /*! \brief The tables of the file are damaged; [byte]. */
  MLFC_VM_BAD_FILE = 1,
  /*! \brief An instruction, or a function's tables, are damaged. */
  MLFC_VM_BAD_CODE = 2,
  /*! \brief The native code is that of another executable; [kernel or -1, constant or -1]. */
  MLFC_VM_BAD_NATIVE = 3,
  /*! \brief There is no such function, or it has other parameters or results; [function, inputs, outputs]. */
  MLFC_VM_BAD_CALL = 4,
  /*! \brief An input does not fit; [input, axis or a MLFC_VM_AXIS_ value, what it has]. */
  MLFC_VM_BAD_INPUT = 5,
  /*! \brief The model returns something else than it declares; as for inputs. */
  MLFC_VM_BAD_OUTPUT = 6,
  /*! \brief The work area is too small; [bytes it has]. */
  MLFC_VM_WORK = 7,
  /*! \brief A register is read before it is written. */
  MLFC_VM_UNSET = 8,
  /*! \brief An integer does not fit; [a, b], or [value] of an element. */
  MLFC_VM_OVERFLOW = 9,
  /*! \brief A division by zero; [dividend]. */
  MLFC_VM_DIVISION = 10,
  /*! \brief A tensor has no such axis; [axis, rank]. */
  MLFC_VM_AXIS = 11,
  /*! \brief A tensor has no such element; [index, elements]. */
  MLFC_VM_ELEMENT = 12,
  /*! \brief Elements of this dtype are no integers; [dtype]. */
  MLFC_VM_DTYPE = 13,
  /*! \brief `require_range`; [value, low, high]. */
  MLFC_VM_RANGE = 14,
  /*! \brief `require_equal`; [a, b]. */
  MLFC_VM_EQUAL = 15,
  /*! \brief A negative extent, size or start; [it]. */
  MLFC_VM_NEGATIVE = 16,
  /*! \brief The bytes of a tensor do not fit in 63 bits; [extent]. */
  MLFC_VM_SIZE = 17,
  /*! \brief A tensor leaves its memory; [bytes, those that are there]. */
  MLFC_VM_OUTSIDE = 18,
  /*! \brief A start is no multiple of MLFC_VM_ALIGNMENT; [start]. */
  MLFC_VM_MISALIGNED = 19,
  /*! \brief An input or a constant would be written; [buffer of the kernel, or -1]. */
  MLFC_VM_READ_ONLY = 20,
  /*! \brief `copy` of another size; [bytes, bytes of the source]. */
  MLFC_VM_SIZES = 21,
  /*! \brief A kernel refused sizes or numbers; [its status]. */
  MLFC_VM_KERNEL = 22,
  /*! \brief A packed function failed, or there are none; [its status]. */
  MLFC_VM_PACKED = 23,
  /*! \brief There is no such device; [device]. */
  MLFC_VM_DEVICE = 24,
  /*! \brief The memory limit; [bytes asked for, limit]. */
  MLFC_VM_MEMORY = 25,
  /*! \brief No memory, or no function that allocates; [bytes]. */
  MLFC_VM_ALLOCATE = 26,
  /*! \brief The limit of backward jumps and calls; [limit]. */
  MLFC_VM_TURNS = 27,
  /*! \brief The limit of calls within calls; [limit]. */
  MLFC_VM_DEPTH = 28,
  /*! \brief `fail`. */
  MLFC_VM_FAILED = 29,
  /*! \brief A list has no such position; [index, length]. */
  MLFC_VM_INDEX = 30
};

#define MLFC_VM_NOWHERE 0xFFFFFFFFu

/*! \brief In place of an axis in errors of inputs and outputs. */
enum { MLFC_VM_AXIS_DTYPE = -1, MLFC_VM_AXIS_RANK = -2, MLFC_VM_AXIS_ALIGNMENT = -3 };

/*! \brief Why something failed. */
typedef struct {
  int32_t code;
  /*! \brief The function, or MLFC_VM_NOWHERE for what is in none, and the number of the instruction in it. */
  uint32_t function;
  uint32_t instruction;
  /*! \brief What the instruction names: a symbol, a node, a kernel, an input; else NULL. It is in the bytecode. */
  const char* text;
  int64_t values[3];
} mlfc_vm_error;

/*! \brief Loaded bytecode: views of its tables. It stays where it is, and so does the file. */
typedef struct {
  const mlfc_vm_code* code;
  const uint8_t* tables[11];
  uint32_t counts[11];
  int64_t arena_bytes;
  size_t state_bytes;
  uint32_t most_buffers;
  uint32_t most_numbers;
  uint32_t most_packed;
  uint32_t is_recursive;
} mlfc_vm;

/*! \brief A tensor of the caller or for the caller; elements are in row-major order, without gaps. */
typedef struct {
  /*! \brief At a multiple of MLFC_VM_ALIGNMENT. */
  void* data;
  /*! \brief Of the interpreter: what `mlfc_vm_release` frees. */
  void* block;
  int64_t extents[MLFC_VM_MAX_RANK];
  /*! \brief The number of the dtype in the bytecode's table. */
  uint8_t dtype;
  uint8_t rank;
} mlfc_vm_tensor;

/*! \brief What the caller provides; everything may be zero. */
typedef struct {
  /*! \brief Returns memory of zeros, or NULL. */
  void* (*allocate)(void* context, size_t bytes);
  void (*release)(void* context, void* memory);
  /*! \brief Calls a packed function on tensors; 0 on success. */
  int32_t (*packed)(void* context, const char* name, mlfc_vm_tensor* tensors, uint32_t count);
  void* context;
  /*! \brief Of all memory at one time: the arena, storages, frames, lists; 0 is none. */
  int64_t memory_limit;
  /*! \brief Of backward jumps and calls in a run; 0 is none. */
  uint64_t turn_limit;
  /*! \brief Of calls within calls, the first included; 0 is none but the work area. */
  uint32_t depth_limit;
  /*!
   * \brief The tensors that the model keeps from run to run: `mlfc_vm_state_bytes` at a multiple of MLFC_VM_ALIGNMENT,
   * one memory for each sequence. `mlfc_vm_state_reset` sets it first. With NULL, states are the last inputs, and
   * their next values the last outputs.
   */
  void* state;
} mlfc_vm_host;

/*!
 * \brief Checks bytecode where it is, in time linear in its size.
 * \param vm Set on success.
 * \param file The bytecode, at any address.
 * \param bytes Its size.
 * \param code The native code of the same model.
 * \param error Set on failure.
 * \return MLFC_VM_OK or the error's code.
 */
int32_t mlfc_vm_load(mlfc_vm* vm, const uint8_t* file, size_t bytes, const mlfc_vm_code* code, mlfc_vm_error* error);

/*!
 * \brief Returns the bytes of a work area; 0 if they do not fit in size_t, or if `depth` must be given.
 * \param vm What will run.
 * \param depth Of calls within calls; 0 for code in which functions call later ones only, as mlfc writes it.
 */
size_t mlfc_vm_work_bytes(const mlfc_vm* vm, uint32_t depth);

/*! \brief Returns the bytes of the tensors that the model keeps from run to run; 0 if there are none. */
size_t mlfc_vm_state_bytes(const mlfc_vm* vm);

/*! \brief Sets the tensors that the model keeps to their first values: a new sequence begins. */
void mlfc_vm_state_reset(const mlfc_vm* vm, void* state);

/*! \brief Returns the number of the function with this name, or the number of functions. Number 0 is the model. */
uint32_t mlfc_vm_function(const mlfc_vm* vm, const char* name);

/*! \brief Returns how many tensors a function takes, and how many it returns. */
uint32_t mlfc_vm_parameter_count(const mlfc_vm* vm, uint32_t function);
uint32_t mlfc_vm_result_count(const mlfc_vm* vm, uint32_t function);

/*!
 * \brief Runs a function.
 *
 * States in `host->state` are read and, when the run succeeds, replaced; a run that fails leaves them as they were.
 * \param inputs One for each parameter, without those states, which are only read.
 * \param outputs Set, one for each result, without the next values of those states. They are in the work area, in the caller's inputs or constants, or in
 *   memory of `host->allocate` until `mlfc_vm_release`.
 * \param work, work_bytes Memory for the run, at any address.
 * \param host May be NULL.
 * \param error Set on failure; nothing is allocated then.
 * \return MLFC_VM_OK or the error's code.
 */
int32_t mlfc_vm_run(const mlfc_vm* vm, uint32_t function, const mlfc_vm_tensor* inputs, uint32_t input_count,
                    mlfc_vm_tensor* outputs, uint32_t output_count, void* work, size_t work_bytes,
                    const mlfc_vm_host* host, mlfc_vm_error* error);

/*! \brief Frees what outputs of a run hold; with the same `host`. */
void mlfc_vm_release(const mlfc_vm_host* host, mlfc_vm_tensor* outputs, uint32_t output_count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_VM_H_ */
