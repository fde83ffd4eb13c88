/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <stddef.h>
#include <string.h>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/platform.h>

#include "config.h"
#include "error_text.h"
#include "tensor.h"

/* An array; the public part comes first. */
typedef struct {
  DLTensor tensor;
  int64_t shape[TVM_CRT_MAX_NDIM];
  AlignedBlock memory;
} Array;

static const DLDevice cpu = {kDLCPU, 0};

static tvm_crt_error_t check_type(int ndim, int dtype_code, int dtype_bits, int dtype_lanes) {
  if (ndim < 0 || ndim > TVM_CRT_MAX_NDIM) {
    return tvm_crt_fail(kTvmErrorDataLimitExceeded, "an array has at most %u dimensions: raise TVM_CRT_MAX_NDIM",
                        (uint32_t)TVM_CRT_MAX_NDIM);
  }
  if (dtype_code < 0 || dtype_code > UINT8_MAX || dtype_bits <= 0 || dtype_bits > UINT8_MAX || dtype_lanes <= 0 ||
      dtype_lanes > UINT16_MAX) {
    return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "an array's type is out of range");
  }
  return kTvmErrorNoError;
}

int TVMArrayAlloc(const tvm_index_t* shape, int ndim, int dtype_code, int dtype_bits, int dtype_lanes, int device_type,
                  int device_id, TVMArrayHandle* out) {
  const DLDataType dtype = {(uint8_t)dtype_code, (uint8_t)dtype_bits, (uint16_t)dtype_lanes};
  void* memory = NULL;
  size_t bytes;
  *out = NULL;
  tvm_crt_error_t error = check_type(ndim, dtype_code, dtype_bits, dtype_lanes);
  if (error != kTvmErrorNoError) return error;
  if (TVMPlatformMemoryAllocate(sizeof(Array), cpu, &memory) != kTvmErrorNoError || memory == NULL) {
    return tvm_crt_fail(kTvmErrorPlatformNoMemory, "no memory for an array");
  }
  Array* array = (Array*)memory;
  memset(array, 0, sizeof(Array));
  if (ndim > 0) memcpy(array->shape, shape, (size_t)ndim * sizeof(int64_t));
  array->tensor.ndim = ndim;
  array->tensor.dtype = dtype;
  array->tensor.shape = array->shape;
  array->tensor.device.device_type = (DLDeviceType)device_type;
  array->tensor.device.device_id = device_id;
  if (tvm_crt_tensor_bytes(&array->tensor, &bytes)) {
    error = tvm_crt_block_allocate(bytes, &array->memory);
  } else {
    error = tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "an array's shape is negative or too large");
  }
  if (error != kTvmErrorNoError) {
    TVMPlatformMemoryFree(memory, cpu);
    return error;
  }
  array->tensor.data = array->memory.data;
  *out = &array->tensor;
  return 0;
}

int TVMArrayFree(TVMArrayHandle handle) {
  Array* array = (Array*)(void*)handle;
  const tvm_crt_error_t error = tvm_crt_block_free(&array->memory);
  const tvm_crt_error_t other = TVMPlatformMemoryFree(array, cpu);
  return error != kTvmErrorNoError ? error : other;
}

static tvm_crt_error_t check_size(const DLTensor* tensor, size_t nbytes) {
  size_t bytes;
  if (tvm_crt_tensor_bytes(tensor, &bytes) && bytes == nbytes && tvm_crt_is_compact(tensor)) return kTvmErrorNoError;
  return tvm_crt_fail(kTvmErrorDataTensorMismatch, "an array without gaps and of exactly %u bytes is needed",
                      (uint32_t)nbytes);
}

int TVMArrayCopyFromBytes(TVMArrayHandle handle, void* data, size_t nbytes) {
  const tvm_crt_error_t error = check_size(handle, nbytes);
  if (error == kTvmErrorNoError && nbytes > 0) memcpy((char*)handle->data + handle->byte_offset, data, nbytes);
  return error;
}

int TVMArrayCopyToBytes(TVMArrayHandle handle, void* data, size_t nbytes) {
  const tvm_crt_error_t error = check_size(handle, nbytes);
  if (error == kTvmErrorNoError && nbytes > 0) memcpy(data, (char*)handle->data + handle->byte_offset, nbytes);
  return error;
}
