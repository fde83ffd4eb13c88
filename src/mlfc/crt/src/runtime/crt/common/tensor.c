/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "tensor.h"

#include <string.h>
#include <tvm/runtime/crt/platform.h>

#include "config.h"
#include "error_text.h"

static bool same_dtype(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

static const DLDevice cpu = {kDLCPU, 0};

size_t tvm_crt_element_bytes(DLDataType dtype) {
  const size_t bytes = ((size_t)dtype.bits * dtype.lanes + 7) / 8;
  return bytes == 0 ? 1 : bytes;
}

bool tvm_crt_element_count(const int64_t* shape, int32_t ndim, size_t* count) {
  size_t product = 1;
  for (int32_t i = 0; i < ndim; ++i) {
    if (shape[i] < 0 || (uint64_t)shape[i] > SIZE_MAX / 2) return false;
    if (shape[i] != 0 && product > SIZE_MAX / 2 / (size_t)shape[i]) return false;
    product *= (size_t)shape[i];
  }
  *count = product;
  return true;
}

bool tvm_crt_tensor_bytes(const DLTensor* tensor, size_t* bytes) {
  const size_t element = tvm_crt_element_bytes(tensor->dtype);
  size_t count;
  if (!tvm_crt_element_count(tensor->shape, tensor->ndim, &count) || count > SIZE_MAX / 2 / element) return false;
  *bytes = count * element;
  return true;
}

bool tvm_crt_is_compact(const DLTensor* tensor) {
  int64_t expected = 1;
  if (tensor->strides == NULL) return true;
  for (int32_t i = tensor->ndim; i-- > 0;) {
    if (tensor->shape[i] == 0) return true;
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected) return false;
    if (expected > INT64_MAX / tensor->shape[i]) return false;
    expected *= tensor->shape[i];
  }
  return true;
}

tvm_crt_error_t tvm_crt_check_alike(const DLTensor* from, const DLTensor* to) {
  size_t bytes;
  size_t other;
  if (!same_dtype(from->dtype, to->dtype)) {
    return tvm_crt_fail(kTvmErrorDataTensorMismatch,
                        "a tensor of type code %u with %u bits cannot stand for one of code %u with %u bits",
                        (uint32_t)from->dtype.code, (uint32_t)from->dtype.bits, (uint32_t)to->dtype.code,
                        (uint32_t)to->dtype.bits);
  }
  if (!tvm_crt_tensor_bytes(from, &bytes) || !tvm_crt_tensor_bytes(to, &other) || bytes != other) {
    return tvm_crt_fail(kTvmErrorDataTensorMismatch, "a tensor cannot stand for one of another size");
  }
  if (!tvm_crt_is_compact(from) || !tvm_crt_is_compact(to)) {
    return tvm_crt_fail(kTvmErrorDataTensorMismatch, "a tensor with strides cannot be used: make it compact first");
  }
  if (bytes > 0 && (from->data == NULL || to->data == NULL)) {
    return tvm_crt_fail(kTvmErrorDataTensorMismatch, "a tensor without data cannot be used");
  }
  return kTvmErrorNoError;
}

tvm_crt_error_t tvm_crt_copy_elements(const DLTensor* from, DLTensor* to) {
  size_t bytes;
  const tvm_crt_error_t error = tvm_crt_check_alike(from, to);
  if (error == kTvmErrorNoError && tvm_crt_tensor_bytes(from, &bytes) && bytes > 0) {
    memmove((char*)to->data + to->byte_offset, (const char*)from->data + from->byte_offset, bytes);
  }
  return error;
}

/* Compares integers, since pointers to different objects cannot be compared. */
bool tvm_crt_lies_in(const void* address, size_t num_bytes, const void* block, size_t block_bytes) {
  const uintptr_t begin = (uintptr_t)block;
  if (block == NULL || (uintptr_t)address < begin) return false;
  const uintptr_t offset = (uintptr_t)address - begin;
  return offset <= block_bytes && num_bytes <= block_bytes - offset;
}

tvm_crt_error_t tvm_crt_block_allocate(size_t bytes, AlignedBlock* block) {
  const size_t slack = TVM_CRT_STORAGE_ALIGNMENT_BYTES - 1;
  block->allocated = NULL;
  /* Empty tensors also get an address: operators may compare it with NULL. */
  const size_t size = bytes == 0 ? 1 : bytes;
  if (size > SIZE_MAX - slack ||
      TVMPlatformMemoryAllocate(size + slack, cpu, &block->allocated) != kTvmErrorNoError || block->allocated == NULL) {
    block->allocated = NULL;
    return tvm_crt_fail(kTvmErrorPlatformNoMemory, "no memory for %u bytes", (uint32_t)bytes);
  }
  const size_t over = (size_t)((uintptr_t)block->allocated & slack);
  block->data = (char*)block->allocated + (over == 0 ? 0 : slack + 1 - over);
  memset(block->data, 0, size);
  return kTvmErrorNoError;
}

tvm_crt_error_t tvm_crt_block_free(AlignedBlock* block) {
  void* allocated = block->allocated;
  block->allocated = NULL;
  block->data = NULL;
  return allocated == NULL ? kTvmErrorNoError : TVMPlatformMemoryFree(allocated, cpu);
}
