/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*!
 * \brief Interface of dynamic models, whose shapes or control flow depend on their inputs.
 *
 * The header of a module declares its main function, `tvmgen_<module>_vm_run`:
 *
 *   int32_t tvmgen_<module>_vm_run(const mlfc_vm_host* host, const mlfc_vm_tensor* inputs, mlfc_vm_tensor* outputs,
 *                                  void* work, int64_t work_bytes, mlfc_vm_error* error);
 *
 * It checks the inputs, runs the model and sets the outputs; it returns MLFC_VM_OK or the code of the error. `work` is
 * memory at any address, for one run at a time. If the header declares a size, `..._VM_WORK_SIZE`, the model needs
 * only that and no heap: outputs are in `work` until the next run. Other models call `host->allocate` while they run;
 * `tvmgen_<module>_vm_release` frees their outputs, and `error->values[0]` is then the size of a work area that would
 * have avoided the largest allocation.
 */
#ifndef MLFC_VM_H_
#define MLFC_VM_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MLFC_VM_MAX_RANK = 8, MLFC_VM_ALIGNMENT = 64, MLFC_VM_CPU = 1 };

/*! \brief Status of a run, also in `code` of an error. In brackets: the error's `values`. */
enum {
  MLFC_VM_OK = 0,
  /*! \brief The model has states, but `host->state` is NULL; [required bytes]. */
  MLFC_VM_STATE = 4,
  /*! \brief An input does not match its declaration; [input, axis or a MLFC_VM_AXIS_ value, actual value]. */
  MLFC_VM_BAD_INPUT = 5,
  /*! \brief An output does not match its declaration; values as for inputs. */
  MLFC_VM_BAD_OUTPUT = 6,
  /*! \brief The work area is too small; [required bytes]. */
  MLFC_VM_WORK = 7,
  /*! \brief An operation on dimensions overflows; [a, b]. */
  MLFC_VM_OVERFLOW = 9,
  /*! \brief Division by zero; [dividend]. */
  MLFC_VM_DIVISION = 10,
  /*! \brief A tensor has fewer elements than required; [required bytes, actual bytes]. */
  MLFC_VM_ELEMENT = 12,
  /*! \brief A number is outside its bounds; [value, low, high]. */
  MLFC_VM_RANGE = 14,
  /*! \brief Two numbers that must be equal differ; [a, b]. */
  MLFC_VM_EQUAL = 15,
  /*! \brief A negative dimension or size; [its value]. */
  MLFC_VM_NEGATIVE = 16,
  /*! \brief A tensor is too large; [dimension or size]. */
  MLFC_VM_SIZE = 17,
  /*! \brief A kernel rejected its arguments; [its status]. */
  MLFC_VM_KERNEL = 22,
  /*! \brief A packed function failed, or `host` provides none; [its status]. */
  MLFC_VM_PACKED = 23,
  /*! \brief The device does not exist; [device]. */
  MLFC_VM_DEVICE = 24,
  /*! \brief The memory limit was exceeded; [requested bytes, limit]. */
  MLFC_VM_MEMORY = 25,
  /*! \brief Allocation failed, or `host` provides no allocator; [bytes]. */
  MLFC_VM_ALLOCATE = 26,
  /*! \brief The iteration limit was exceeded; [limit]. */
  MLFC_VM_TURNS = 27,
  /*! \brief The model ended the run, for the reason in `text`. */
  MLFC_VM_FAILED = 29,
  /*! \brief A list index is out of range; [index, length]. */
  MLFC_VM_INDEX = 30
};

/*! \brief Values in place of an axis in errors of inputs and outputs. */
enum { MLFC_VM_AXIS_DTYPE = -1, MLFC_VM_AXIS_RANK = -2, MLFC_VM_AXIS_ALIGNMENT = -3 };

/*! \brief The error of a failed run. */
typedef struct {
  int32_t code;
  /*! \brief The input, dimension or node concerned; or NULL. */
  const char* text;
  int64_t values[3];
} mlfc_vm_error;

/*! \brief A tensor; elements are in row-major order, without gaps. */
typedef struct {
  /*!
   * \brief On a device, the handle of its memory. Inputs are aligned to MLFC_VM_ALIGNMENT; inputs and outputs that are
   * always smaller, to the largest power of two that does not exceed their size.
   */
  void* data;
  /*! \brief The owner of an output's memory; NULL for inputs. */
  void* block;
  int64_t extents[MLFC_VM_MAX_RANK];
  /*! \brief DLPack's device type: MLFC_VM_CPU for the host. */
  int32_t device;
  /*! \brief The dtype number that a module's header declares for each input and output. */
  uint8_t dtype;
  uint8_t rank;
} mlfc_vm_tensor;

/*! \brief Device memory functions, for models that run partly on a device. */
typedef struct {
  void* (*allocate)(void* context, int32_t device, int64_t bytes);
  void (*release)(void* context, int32_t device, void* memory);
  /*! \brief Copies the bytes of a tensor to another one, on the same or another device; 0 on success. */
  int32_t (*copy)(void* context, const mlfc_vm_tensor* to, const mlfc_vm_tensor* from, int64_t bytes);
  /*! \brief Returns a copy of a constant on a device, the same for all runs. */
  void* (*constant)(void* context, int32_t device, const void* data, int64_t bytes);
} mlfc_vm_devices;

/*! \brief Functions and memory of the caller; all fields may be zero. */
typedef struct {
  /*! \brief Like malloc and free; not used by models whose header declares a work size. */
  void* (*allocate)(int64_t bytes);
  void (*release)(void* memory);
  /*! \brief Calls a function of a runtime module on tensors, the last of which is its result; 0 on success. */
  int32_t (*packed)(void* context, const char* name, mlfc_vm_tensor* tensors, int32_t count);
  /*!
   * \brief Called before and after each kernel, with the number of its call in the code and its numeric arguments;
   * `data` is NULL before the kernel and its output after it.
   */
  void (*trace)(void* context, int32_t call, const int64_t* numbers, int32_t count, void* data, int64_t bytes);
  const mlfc_vm_devices* devices;
  /*! \brief Passed to the functions above. */
  void* context;
  /*!
   * \brief NULL, or the caller's memory for each output, with the expected dtype and dimensions. If an output has
   * others, the run fails with MLFC_VM_BAD_OUTPUT without a text, `values` are [output, 0, 0], `outputs` contains the
   * actual dimensions, and nothing is written.
   */
  const mlfc_vm_tensor* targets;
  /*!
   * \brief Memory of the model's states: `..._VM_STATE_SIZE` bytes, one for each sequence of runs.
   * `tvmgen_<module>_vm_state_reset` initializes it; a failed run does not change it.
   */
  void* state;
  /*! \brief Limit of a run's total memory at any time; 0 for none. */
  int64_t memory_limit;
  /*! \brief Limit of the total iterations of all loops; 0 for none. */
  uint64_t turn_limit;
} mlfc_vm_host;

/*! \brief For generated code: a run, memory shared by tensors, and lists of tensors. */
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
