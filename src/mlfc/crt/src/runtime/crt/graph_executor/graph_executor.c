/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>
#include <tvm/runtime/crt/platform.h>

#include "../common/error_text.h"
#include "executor.h"
#include "load_params.h"

static const DLDevice cpu = {kDLCPU, 0};

/* Firmware for microTVM may not check for errors: after a failed TVMGraphExecutor_Create it passes NULL. */
static tvm_crt_error_t missing(const char* what) {
  return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "%s is NULL", what);
}

int TVMGraphExecutor_GetInputIndex(TVMGraphExecutor* executor, const char* name) {
  if (executor == NULL || name == NULL) return -1;
  for (uint32_t i = 0; i < executor->num_inputs; ++i) {
    if (strcmp(executor->inputs[i].name, name) == 0) return (int)i;
  }
  return -1;
}

int TVMGraphExecutor_GetNumInputs(TVMGraphExecutor* executor) {
  return executor == NULL ? 0 : (int)executor->num_inputs;
}

int TVMGraphExecutor_GetNumOutputs(TVMGraphExecutor* executor) {
  return executor == NULL ? 0 : (int)executor->num_outputs;
}

static tvm_crt_error_t no_such_input(const char* name) {
  return tvm_crt_fail(kTvmErrorExecutorModuleNoSuchInput, "the graph has no input %s", name);
}

static tvm_crt_error_t no_input_at(const TVMGraphExecutor* executor) {
  return tvm_crt_fail(kTvmErrorExecutorModuleNoSuchInput,
                      "the graph has %u inputs and parameters, none at the given position", executor->num_inputs);
}

static bool is_input(const TVMGraphExecutor* executor, int32_t index) {
  return index >= 0 && (uint32_t)index < executor->num_inputs;
}

int TVMGraphExecutor_GetInput(TVMGraphExecutor* executor, int32_t index, DLTensor** tensor) {
  if (tensor == NULL) return missing("the place for the tensor");
  *tensor = NULL;
  if (executor == NULL) return missing("the executor");
  if (!is_input(executor, index)) return no_input_at(executor);
  const uint32_t found = executor->inputs[index].tensor;
  const uint32_t storage = executor->storage_of_tensor[found];
  if (executor->storages[storage].data == NULL) {
    const tvm_crt_error_t error = storage_own(executor, storage);
    if (error != kTvmErrorNoError) return error;
  }
  *tensor = &executor->tensors[found];
  return 0;
}

tvm_crt_error_t copy_input(TVMGraphExecutor* executor, int32_t index, const DLTensor* from) {
  if (!is_input(executor, index)) return no_input_at(executor);
  const uint32_t tensor = executor->inputs[index].tensor;
  const tvm_crt_error_t error = storage_own(executor, executor->storage_of_tensor[tensor]);
  return error != kTvmErrorNoError ? error : tvm_crt_copy_elements(from, &executor->tensors[tensor]);
}

int TVMGraphExecutor_SetInput(TVMGraphExecutor* executor, const char* name, DLTensor* data_in) {
  const int index = TVMGraphExecutor_GetInputIndex(executor, name);
  size_t bytes;
  if (executor == NULL) return missing("the executor");
  if (name == NULL) return missing("the name of an input");
  if (data_in == NULL || (data_in->shape == NULL && data_in->ndim > 0)) return missing("an input or its shape");
  if (index < 0) return no_such_input(name);
  const uint32_t tensor = executor->inputs[index].tensor;
  const uint32_t storage = executor->storage_of_tensor[tensor];
  if (!tvm_crt_tensor_bytes(data_in, &bytes) || !storage_can_link(executor, storage, bytes)) {
    return copy_input(executor, index, data_in);
  }
  /* The input itself may have no memory, and does not need any. */
  DLTensor wanted = executor->tensors[tensor];
  wanted.data = data_in->data;
  const tvm_crt_error_t error = tvm_crt_check_alike(data_in, &wanted);
  if (error == kTvmErrorNoError) storage_link(executor, storage, (const char*)data_in->data + data_in->byte_offset);
  return error;
}

int TVMGraphExecutor_GetOutput(TVMGraphExecutor* executor, const int32_t index, DLTensor* out) {
  if (executor == NULL) return missing("the executor");
  if (out == NULL) return missing("the tensor for an output");
  if (index < 0 || (uint32_t)index >= executor->num_outputs) {
    return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "the graph has %u outputs, none at the given position",
                        executor->num_outputs);
  }
  const tvm_crt_error_t error = storage_complete(executor);
  if (error != kTvmErrorNoError) return error;
  const DLTensor* tensor = &executor->tensors[executor->outputs[index]];
  if (out->data != NULL) return tvm_crt_copy_elements(tensor, out);
  *out = *tensor;
  return 0;
}

int TVMGraphExecutor_Run(TVMGraphExecutor* executor) {
  if (executor == NULL) return missing("the executor");
  const tvm_crt_error_t error = storage_complete(executor);
  if (error != kTvmErrorNoError) return error;
  TVMAPISetLastError(NULL);
  for (const Call* call = executor->calls; call != executor->calls + executor->num_calls; ++call) {
    TVMValue value;
    int code = kTVMNullptr;
    const int status = call->function(call->values, call->codes, call->num_args, &value, &code, NULL);
    if (status != 0) {
      /* Operators need not set an error text. */
      if (TVMGetLastError()[0] == '\0') {
        tvm_crt_fail(kTvmErrorNoError, "operator %u of the graph failed", (uint32_t)(call - executor->calls));
      }
      return status;
    }
  }
  return 0;
}

/* Finds the tensor of an array, and checks that they match. */
static tvm_crt_error_t find_param(TVMGraphExecutor* executor, const Param* param, uint32_t* found) {
  const int index = TVMGraphExecutor_GetInputIndex(executor, param->name);
  size_t bytes;
  if (index < 0) return no_such_input(param->name);
  *found = executor->inputs[index].tensor;
  const DLTensor* tensor = &executor->tensors[*found];
  bool same = tensor->dtype.code == param->dtype.code && tensor->dtype.bits == param->dtype.bits &&
              tensor->dtype.lanes == param->dtype.lanes && tensor->ndim == param->ndim &&
              tvm_crt_tensor_bytes(tensor, &bytes) && bytes == param->bytes;
  for (int32_t i = 0; same && i < param->ndim; ++i) same = tensor->shape[i] == param->shape[i];
  if (same) return kTvmErrorNoError;
  return tvm_crt_fail(kTvmErrorDataTensorMismatch, "parameter %s has not the shape and type that the graph says",
                      param->name);
}

/* Checks all arrays of a file first, so that an invalid file changes nothing. */
static tvm_crt_error_t check_params(TVMGraphExecutor* executor, const char* blob, uint32_t size) {
  ParamsReader reader = params_reader(blob, size);
  Param param;
  while (params_next(&reader, &param)) {
    uint32_t tensor;
    const tvm_crt_error_t error = find_param(executor, &param, &tensor);
    if (error != kTvmErrorNoError) return error;
  }
  return reader.error;
}

/* Whether an array can be used in place. Other tensors of its storage must fit in it. */
static bool can_link(const TVMGraphExecutor* executor, uint32_t tensor, const Param* param, uint32_t alignment) {
  const size_t element = tvm_crt_element_bytes(param->dtype);
  const uintptr_t address = (uintptr_t)param->data;
  return alignment != 0 && storage_can_link(executor, executor->storage_of_tensor[tensor], param->bytes) &&
         address % alignment == 0 && address % (element < 8 ? element : 8) == 0;
}

/* Alignment 0 links nothing. */
static tvm_crt_error_t take_params(TVMGraphExecutor* executor, const char* blob, uint32_t size, uint32_t alignment,
                                   uint32_t* num_linked) {
  if (executor == NULL) return missing("the executor");
  if (blob == NULL) return missing("the parameter file");
  tvm_crt_error_t error = check_params(executor, blob, size);
  ParamsReader reader = params_reader(blob, size);
  Param param;
  while (error == kTvmErrorNoError && params_next(&reader, &param)) {
    uint32_t tensor;
    error = find_param(executor, &param, &tensor);
    if (error != kTvmErrorNoError) break;
    const uint32_t storage = executor->storage_of_tensor[tensor];
    if (can_link(executor, tensor, &param, alignment)) {
      storage_link(executor, storage, param.data);
      ++*num_linked;
      continue;
    }
    error = storage_own(executor, storage);
    if (error == kTvmErrorNoError && param.bytes > 0) memcpy(executor->tensors[tensor].data, param.data, param.bytes);
  }
  return error;
}

int TVMGraphExecutor_LoadParams(TVMGraphExecutor* executor, const char* param_blob, const uint32_t param_size) {
  uint32_t num_linked = 0;
  return take_params(executor, param_blob, param_size, 0, &num_linked);
}

int TVMGraphExecutor_LinkParams(TVMGraphExecutor* executor, const char* param_blob, const uint32_t param_size,
                                uint32_t alignment, uint32_t* num_linked) {
  uint32_t linked = 0;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "an alignment of %u is not a power of two", alignment);
  }
  const tvm_crt_error_t error = take_params(executor, param_blob, param_size, alignment, &linked);
  if (num_linked != NULL) *num_linked = linked;
  return error;
}

int TVMGraphExecutor_Release(TVMGraphExecutor** executor) {
  if (executor == NULL || *executor == NULL) return 0;
  TVMGraphExecutor* released = *executor;
  tvm_crt_error_t error = kTvmErrorNoError;
  *executor = NULL;
  for (uint32_t i = 0; i < released->num_storages; ++i) {
    const tvm_crt_error_t other = tvm_crt_block_free(&released->storages[i].block);
    if (error == kTvmErrorNoError) error = other;
  }
  const tvm_crt_error_t other = TVMPlatformMemoryFree(released, cpu);
  return error != kTvmErrorNoError ? error : other;
}
