/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Page allocator for platforms without malloc */
#ifndef TVM_RUNTIME_CRT_PAGE_ALLOCATOR_H_
#define TVM_RUNTIME_CRT_PAGE_ALLOCATOR_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/error_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MemoryManagerInterface MemoryManagerInterface;

struct MemoryManagerInterface {
  /*! \brief Allocates memory that starts at a page boundary. */
  tvm_crt_error_t (*Allocate)(MemoryManagerInterface* interface, size_t num_bytes, DLDevice dev, void** out_ptr);
  /*! \brief Frees memory, in any order. */
  tvm_crt_error_t (*Free)(MemoryManagerInterface* interface, void* ptr, DLDevice dev);
};

/*!
 * \brief Creates a memory manager inside the memory that it manages.
 * \param manager The manager.
 * \param memory_pool The memory. Pages start at its first multiple of 64 bytes, or of the page size if that is less.
 * \param memory_pool_size_bytes Its size. The manager uses a few words and four bytes per page of it.
 * \param page_size_bytes_log2 Size of a page: at least 4, which is 16 bytes.
 */
tvm_crt_error_t PageMemoryManagerCreate(MemoryManagerInterface** manager, uint8_t* memory_pool,
                                        size_t memory_pool_size_bytes, size_t page_size_bytes_log2);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_PAGE_ALLOCATOR_H_ */
