/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*!
 * \brief What the native code of a model for the virtual machine exports: one `mlfc_vm_code` named
 * `tvmgen_<module>_vm_code`, with the kernels and constants in the order of the bytecode.
 *
 * Bytecode is data from a file; this table is code and is trusted. So the table states what each kernel takes, and the
 * interpreter compares: bytecode that asks for something else is refused when it is loaded.
 */
#ifndef MLFC_VM_CODE_H_
#define MLFC_VM_CODE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Memory of a tensor or a workspace; data begins at a multiple of 64 bytes. */
typedef struct {
  uint8_t* data;
  int64_t bytes;
} mlfc_vm_buffer;

/*!
 * \brief Launches a kernel.
 *
 * It compares the bytes of each buffer with what the numbers ask for before it touches any, so that no bytecode makes a
 * kernel leave its memory.
 * \return 0, or anything else if sizes or numbers do not fit.
 */
typedef int32_t (*mlfc_vm_kernel)(const mlfc_vm_buffer* buffers, const int64_t* numbers);

/*! \brief A kernel and what it takes. */
typedef struct {
  mlfc_vm_kernel launch;
  /*! \brief How many buffers; inputs and constants first, then outputs and workspaces. */
  uint32_t buffers;
  /*! \brief How many of the first buffers it only reads: they may be constants or the caller's inputs. */
  uint32_t reads;
  uint32_t numbers;
} mlfc_vm_kernel_entry;

/*! \brief All of a model's native code. Tables without entries may be NULL. */
typedef struct {
  uint32_t kernel_count;
  const mlfc_vm_kernel_entry* kernels;
  uint32_t constant_count;
  /*! \brief Never written to. */
  const mlfc_vm_buffer* constants;
} mlfc_vm_code;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_VM_CODE_H_ */
