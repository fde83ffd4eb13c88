/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*!
 * \brief What callers of dynamic models give and get: models whose shapes or control flow depend on their inputs.
 *
 * The header of a module declares its main function, `tvmgen_<module>_vm_run`:
 *
 *   int32_t tvmgen_<module>_vm_run(const mlfc_vm_host* host, const mlfc_vm_tensor* inputs, mlfc_vm_tensor* outputs,
 *                                  void* work, int64_t work_bytes, mlfc_vm_error* error);
 *
 * It checks the inputs, runs the model and sets the outputs; it returns MLFC_VM_OK or the code of the error. `work` is
 * memory at any address, for one run at a time. Where the header states a size, `..._VM_WORK_SIZE`, the model needs
 * that and no heap: outputs are in `work` until the next run. Other models take memory from `host->allocate` while they
 * run; `tvmgen_<module>_vm_release` frees their outputs, and `error->values[0]` is then the size of a work area that
 * would have spared the largest allocation.
 */
#ifndef MLFC_VM_H_
#define MLFC_VM_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MLFC_VM_MAX_RANK = 8, MLFC_VM_ALIGNMENT = 64, MLFC_VM_CPU = 1 };

/*! \brief What a run returns, and what is in `code` of an error. In brackets: its `values`. */
enum {
  MLFC_VM_OK = 0,
  /*! \brief The model keeps tensors from run to run, and `host->state` is NULL; [bytes it must have]. */
  MLFC_VM_STATE = 4,
  /*! \brief An input does not fit; [input, axis or a MLFC_VM_AXIS_ value, what it has]. */
  MLFC_VM_BAD_INPUT = 5,
  /*! \brief The model returns something else than it declares; as for inputs. */
  MLFC_VM_BAD_OUTPUT = 6,
  /*! \brief The work area is too small; [bytes it must have]. */
  MLFC_VM_WORK = 7,
  /*! \brief The result of an operation on dimensions does not fit; [a, b]. */
  MLFC_VM_OVERFLOW = 9,
  /*! \brief A division by zero; [dividend]. */
  MLFC_VM_DIVISION = 10,
  /*! \brief A tensor has fewer elements; [bytes asked for, bytes it has]. */
  MLFC_VM_ELEMENT = 12,
  /*! \brief A number is outside its bounds; [value, low, high]. */
  MLFC_VM_RANGE = 14,
  /*! \brief Two numbers differ that must be equal; [a, b]. */
  MLFC_VM_EQUAL = 15,
  /*! \brief A negative dimension or size; [it]. */
  MLFC_VM_NEGATIVE = 16,
  /*! \brief A tensor is too large; [dimension or size]. */
  MLFC_VM_SIZE = 17,
  /*! \brief A kernel refused what it was given; [its status]. */
  MLFC_VM_KERNEL = 22,
  /*! \brief A packed function failed, or there are none; [its status]. */
  MLFC_VM_PACKED = 23,
  /*! \brief There is no such device; [device]. */
  MLFC_VM_DEVICE = 24,
  /*! \brief The limit of memory; [bytes asked for, limit]. */
  MLFC_VM_MEMORY = 25,
  /*! \brief No memory, or no function that allocates; [bytes]. */
  MLFC_VM_ALLOCATE = 26,
  /*! \brief The limit of iterations; [limit]. */
  MLFC_VM_TURNS = 27,
  /*! \brief The model ended the run, for the reason in `text`. */
  MLFC_VM_FAILED = 29,
  /*! \brief A list has no such position; [index, length]. */
  MLFC_VM_INDEX = 30
};

/*! \brief In place of an axis in errors of inputs and outputs. */
enum { MLFC_VM_AXIS_DTYPE = -1, MLFC_VM_AXIS_RANK = -2, MLFC_VM_AXIS_ALIGNMENT = -3 };

/*! \brief Why a run failed. */
typedef struct {
  int32_t code;
  /*! \brief What it is about: an input, a dimension, a node; or NULL. */
  const char* text;
  int64_t values[3];
} mlfc_vm_error;

/*! \brief A tensor; elements are in row-major order, without gaps. */
typedef struct {
  /*!
   * \brief On a device the handle of its memory. Inputs begin at a multiple of MLFC_VM_ALIGNMENT, those that never have
   * so many bytes at a multiple of the largest power of two that fits; outputs of fewer bytes likewise.
   */
  void* data;
  /*! \brief What holds the memory of an output; NULL for inputs. */
  void* block;
  int64_t extents[MLFC_VM_MAX_RANK];
  /*! \brief DLPack's type of the device: MLFC_VM_CPU for the host. */
  int32_t device;
  /*! \brief A number that the header of a module states for each input and output. */
  uint8_t dtype;
  uint8_t rank;
} mlfc_vm_tensor;

/*! \brief Memory of devices; for models that run in part on one. */
typedef struct {
  void* (*allocate)(void* context, int32_t device, int64_t bytes);
  void (*release)(void* context, int32_t device, void* memory);
  /*! \brief Copies the bytes of a tensor into another one, wherever both are; 0 on success. */
  int32_t (*copy)(void* context, const mlfc_vm_tensor* to, const mlfc_vm_tensor* from, int64_t bytes);
  /*! \brief Returns a copy of a constant on a device, the same for all runs. */
  void* (*constant)(void* context, int32_t device, const void* data, int64_t bytes);
} mlfc_vm_devices;

/*! \brief What the caller provides; everything may be zero. */
typedef struct {
  /*! \brief As malloc and free; models whose header states a work size need neither. */
  void* (*allocate)(int64_t bytes);
  void (*release)(void* memory);
  /*! \brief Calls a function of a runtime module on tensors, the last of which is its result; 0 on success. */
  int32_t (*packed)(void* context, const char* name, mlfc_vm_tensor* tensors, int32_t count);
  /*!
   * \brief Is called before and after each kernel, with the number of its call in the code and the numbers that it
   * takes; `data` is NULL before it and its output after it.
   */
  void (*trace)(void* context, int32_t call, const int64_t* numbers, int32_t count, void* data, int64_t bytes);
  const mlfc_vm_devices* devices;
  /*! \brief Passed to the functions above. */
  void* context;
  /*!
   * \brief NULL, or for each output memory of the caller that the run writes it to, with the dtype and dimensions that
   * it must have. Where it has others, MLFC_VM_BAD_OUTPUT without a text is the error, `values` are [output, 0, 0],
   * `outputs` has the dimensions, and nothing is written.
   */
  const mlfc_vm_tensor* targets;
  /*!
   * \brief The tensors that the model keeps from run to run: `..._VM_STATE_SIZE` bytes, one memory for each sequence.
   * `tvmgen_<module>_vm_state_reset` sets it first; a run that fails leaves it as it was.
   */
  void* state;
  /*! \brief Of all memory of a run at one time; 0 is none. */
  int64_t memory_limit;
  /*! \brief Of iterations of all loops together; 0 is none. */
  uint64_t turn_limit;
} mlfc_vm_host;

/*! \brief For generated code: a run, the memory that tensors share, and lists of tensors. */
typedef struct {
  const mlfc_vm_host* host;
  mlfc_vm_error* error;
  int64_t used;
  uint64_t turns;
} mlfc_vm_run;

typedef struct {
  int64_t references;
  int64_t bytes;
  void* memory;
  int64_t device;
} mlfc_vm_block;

typedef struct {
  mlfc_vm_tensor* items;
  int64_t length;
  int64_t room;
} mlfc_vm_list;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_VM_H_ */
