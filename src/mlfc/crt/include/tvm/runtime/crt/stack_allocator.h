/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Stack allocator for AOT modules, in one array */
#ifndef TVM_RUNTIME_CRT_STACK_ALLOCATOR_H_
#define TVM_RUNTIME_CRT_STACK_ALLOCATOR_H_

#include <crt_config.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/error_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Alignment of what the allocator returns: a power of two. crt_config.h may define another one. */
#ifndef TVM_RUNTIME_ALLOC_ALIGNMENT_BYTES
#define TVM_RUNTIME_ALLOC_ALIGNMENT_BYTES 16
#endif

/*! \brief Tag behind each block, checked if TVM_CRT_STACK_ALLOCATOR_ENABLE_LIFO_CHECK is defined. */
#define STACK_ALLOCATOR_TAG 0xabcd1234

typedef struct {
  uint8_t* next_alloc;
  uint8_t* workspace;
  size_t workspace_size;
} tvm_workspace_t;

/*!
 * \brief Starts an empty stack.
 * \param tvm_runtime_workspace The stack.
 * \param g_aot_memory Its memory; up to 15 bytes are lost to alignment.
 * \param workspace_size Bytes of that memory.
 */
tvm_crt_error_t StackMemoryManager_Init(tvm_workspace_t* tvm_runtime_workspace, uint8_t* g_aot_memory,
                                        size_t workspace_size);

/*! \brief Allocates memory on the stack. */
tvm_crt_error_t StackMemoryManager_Allocate(tvm_workspace_t* tvm_runtime_workspace, int32_t nbytes,
                                            void** current_alloc);

/*! \brief Frees a block, and all blocks allocated after it. */
tvm_crt_error_t StackMemoryManager_Free(tvm_workspace_t* tvm_runtime_workspace, void* ptr);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_STACK_ALLOCATOR_H_ */
