/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Sizes of tensors, checked against overflow, and their memory */
#ifndef TVM_RUNTIME_CRT_COMMON_TENSOR_H_
#define TVM_RUNTIME_CRT_COMMON_TENSOR_H_

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <tvm/runtime/crt/error_codes.h>

/*! \brief Bytes of an element: at least one, also for elements of less than a byte. */
size_t tvm_crt_element_bytes(DLDataType dtype);

/*! \brief Returns whether dimensions are valid and, if so, their product. */
bool tvm_crt_element_count(const int64_t* shape, int32_t ndim, size_t* count);

/*! \brief Returns whether a compact tensor's size is representable and, if so, its bytes. */
bool tvm_crt_tensor_bytes(const DLTensor* tensor, size_t* bytes);

/*! \brief Returns whether a tensor's elements are in row-major order without gaps. */
bool tvm_crt_is_compact(const DLTensor* tensor);

/*! \brief Checks that two tensors are compact, have data, the same dtype and the same number of elements. */
tvm_crt_error_t tvm_crt_check_alike(const DLTensor* from, const DLTensor* to);

/*! \brief Copies elements between matching tensors. */
tvm_crt_error_t tvm_crt_copy_elements(const DLTensor* from, DLTensor* to);

/*! \brief Returns whether bytes, at any address, lie in a block of memory. */
bool tvm_crt_lies_in(const void* address, size_t num_bytes, const void* block, size_t block_bytes);

/*! \brief Memory of the platform that contains an aligned part. */
typedef struct {
  void* allocated;
  void* data;
} AlignedBlock;

/*! \brief Allocates zeroed memory aligned to TVM_CRT_STORAGE_ALIGNMENT_BYTES. */
tvm_crt_error_t tvm_crt_block_allocate(size_t bytes, AlignedBlock* block);

/*! \brief Frees a block; no effect if it has no memory. */
tvm_crt_error_t tvm_crt_block_free(AlignedBlock* block);

#endif /* TVM_RUNTIME_CRT_COMMON_TENSOR_H_ */
