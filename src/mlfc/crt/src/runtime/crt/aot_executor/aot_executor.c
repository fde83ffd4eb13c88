/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/aot_executor.h>
#include <tvm/runtime/crt/platform.h>
#include <tvm/runtime/metadata_types.h>

#include "../common/config.h"
#include "../common/error_text.h"
#include "../common/handles.h"
#include "../common/tensor.h"
#include "executor.h"

/* Tensors are inputs, then outputs, in the order of the entry function's arguments. */
struct TVMAotExecutor {
  const TVMMetadata* metadata;
  TVMBackendPackedCFunc run;
  int num_args;
  TVMValue* values;
  int* codes;
  DLTensor* tensors;
  AlignedBlock* blocks;
};

static const DLDevice cpu = {kDLCPU, 0};

static const char prefix[] = "tvmgen_";
static const char get_metadata[] = "_get_c_metadata";

/* A module's name within a longer text. */
typedef struct {
  const char* text;
  size_t length;
} ModuleName;

/* Finds the function tvmgen_<module><suffix>. */
static tvm_crt_error_t find_function(TVMModuleHandle module, ModuleName module_name, const char* suffix,
                                     TVMBackendPackedCFunc* function) {
  char name[TVM_CRT_MAX_STRLEN_FUNCTION_NAME];
  const size_t prefix_length = sizeof(prefix) - 1;
  const size_t suffix_size = strlen(suffix) + 1;
  if (module_name.length > sizeof(name) || prefix_length + module_name.length + suffix_size > sizeof(name)) {
    return tvm_crt_fail(kTvmErrorDataLimitExceeded,
                        "the name of a module is too long: raise TVM_CRT_MAX_STRLEN_FUNCTION_NAME");
  }
  memcpy(name, prefix, prefix_length);
  memcpy(name + prefix_length, module_name.text, module_name.length);
  memcpy(name + prefix_length + module_name.length, suffix, suffix_size);
  return tvm_crt_find_function(module, name, function);
}

static tvm_crt_error_t find_metadata(TVMModuleHandle module, ModuleName module_name, const TVMMetadata** metadata) {
  TVMBackendPackedCFunc get;
  TVMValue value;
  int code = kTVMNullptr;
  const tvm_crt_error_t error = find_function(module, module_name, get_metadata, &get);
  if (error != kTvmErrorNoError) return error;
  const int status = get(NULL, NULL, 0, &value, &code, NULL);
  if (status != 0) return (tvm_crt_error_t)status;
  const TVMMetadata* found = (const TVMMetadata*)value.v_handle;
  if (code != kTVMOpaqueHandle || found == NULL || found->version != TVM_METADATA_VERSION || found->num_inputs < 0 ||
      found->num_outputs < 0 || found->num_inputs > INT16_MAX || found->num_outputs > INT16_MAX) {
    return tvm_crt_fail(kTvmErrorExecutorModuleBadContext, "the module's tables are not of version 1");
  }
  *metadata = found;
  return kTvmErrorNoError;
}

static tvm_crt_error_t make_tensor(TVMAotExecutor* executor, int index, const TVMTensorInfo* info) {
  DLTensor* tensor = &executor->tensors[index];
  size_t bytes;
  tensor->device = cpu;
  tensor->dtype = info->dtype;
  tensor->ndim = (int32_t)info->num_shape;
  /* Read-only, which DLTensor cannot express. */
  memcpy(&tensor->shape, &info->shape, sizeof(tensor->shape));
  executor->values[index].v_handle = tensor;
  executor->codes[index] = kTVMNDArrayHandle;
  if (info->num_shape < 0 || info->num_shape > INT16_MAX || !tvm_crt_tensor_bytes(tensor, &bytes)) {
    return tvm_crt_fail(kTvmErrorExecutorModuleBadContext, "tensor %s has an impossible shape", info->name);
  }
  const tvm_crt_error_t error = tvm_crt_block_allocate(bytes, &executor->blocks[index]);
  tensor->data = executor->blocks[index].data;
  return error;
}

static tvm_crt_error_t make_tensors(TVMAotExecutor* executor) {
  const TVMMetadata* metadata = executor->metadata;
  const int num_inputs = (int)metadata->num_inputs;
  for (int i = 0; i < executor->num_args; ++i) {
    const bool is_input = i < num_inputs;
    const TVMTensorInfo* info = is_input ? &metadata->inputs[i] : &metadata->outputs[i - num_inputs];
    const tvm_crt_error_t error = make_tensor(executor, i, info);
    if (error != kTvmErrorNoError) return error;
  }
  return kTvmErrorNoError;
}

/* Allocates an executor with its lists, in order of decreasing alignment. */
static TVMAotExecutor* allocate(int num_args) {
  const size_t count = (size_t)num_args;
  const size_t one = sizeof(DLTensor) + sizeof(TVMValue) + sizeof(AlignedBlock) + sizeof(int);
  const size_t header = (sizeof(TVMAotExecutor) + sizeof(TVMValue) - 1) / sizeof(TVMValue) * sizeof(TVMValue);
  void* memory = NULL;
  if (TVMPlatformMemoryAllocate(header + count * one, cpu, &memory) != kTvmErrorNoError || memory == NULL) {
    tvm_crt_fail(kTvmErrorPlatformNoMemory, "no memory for an executor of %u tensors", (uint32_t)num_args);
    return NULL;
  }
  memset(memory, 0, header + count * one);
  TVMAotExecutor* executor = (TVMAotExecutor*)memory;
  executor->num_args = num_args;
  executor->tensors = (DLTensor*)(void*)((char*)memory + header);
  executor->values = (TVMValue*)(void*)(executor->tensors + count);
  executor->blocks = (AlignedBlock*)(void*)(executor->values + count);
  executor->codes = (int*)(void*)(executor->blocks + count);
  return executor;
}

static int create(TVMModuleHandle module_handle, const DLDevice device, TVMAotExecutor** executor,
                  ModuleName module_name) {
  const TVMMetadata* metadata = NULL;
  TVMBackendPackedCFunc run = NULL;
  *executor = NULL;
  if (device.device_type != kDLCPU) {
    return tvm_crt_fail(kTvmErrorExecutorModuleBadContext, "the AOT executor runs on the CPU alone");
  }
  tvm_crt_error_t error = find_metadata(module_handle, module_name, &metadata);
  if (error == kTvmErrorNoError) error = find_function(module_handle, module_name, "_run", &run);
  if (error != kTvmErrorNoError) return error;
  TVMAotExecutor* created = allocate((int)(metadata->num_inputs + metadata->num_outputs));
  if (created == NULL) return kTvmErrorPlatformNoMemory;
  created->metadata = metadata;
  created->run = run;
  error = make_tensors(created);
  if (error != kTvmErrorNoError) {
    TVMAotExecutor_Release(created, device);
    return error;
  }
  *executor = created;
  return 0;
}

int TVMAotExecutor_Create(TVMModuleHandle module_handle, const DLDevice device, TVMAotExecutor** executor,
                          const char* module_name) {
  const ModuleName name = {module_name, strlen(module_name)};
  return create(module_handle, device, executor, name);
}

/* Finds the only module with tables, by the name of the function that returns them. */
static bool find_only_module(TVMModuleHandle module_handle, ModuleName* name) {
  const size_t prefix_length = sizeof(prefix) - 1;
  const char* function = tvm_crt_only_function(module_handle, prefix, get_metadata);
  if (function == NULL) return false;
  name->text = function + prefix_length;
  name->length = strlen(function) - prefix_length - (sizeof(get_metadata) - 1);
  return true;
}

int aot_executor_create_any(TVMModuleHandle module_handle, DLDevice device, TVMAotExecutor** executor,
                            const char* module_name) {
  ModuleName name;
  const int status = TVMAotExecutor_Create(module_handle, device, executor, module_name);
  if (status != kTvmErrorFunctionNameNotFound || strcmp(module_name, "default") != 0) return status;
  return find_only_module(module_handle, &name) ? create(module_handle, device, executor, name) : status;
}

bool aot_executor_holds(const TVMAotExecutor* executor, const void* address, size_t num_bytes) {
  for (int i = 0; i < executor->num_args; ++i) {
    size_t bytes;
    if (tvm_crt_tensor_bytes(&executor->tensors[i], &bytes) &&
        tvm_crt_lies_in(address, num_bytes, executor->blocks[i].data, bytes)) {
      return true;
    }
  }
  return false;
}

int TVMAotExecutor_GetNumInputs(TVMAotExecutor* executor) { return (int)executor->metadata->num_inputs; }

int TVMAotExecutor_GetNumOutputs(TVMAotExecutor* executor) { return (int)executor->metadata->num_outputs; }

static bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Whether a name of the model becomes this name in the tables, where names are C identifiers. */
static bool is_identifier_of(const char* identifier, const char* name) {
  while (*name != '\0' && *identifier == (is_letter_or_digit(*name) ? *name : '_')) {
    ++name;
    ++identifier;
  }
  return *name == '\0' && *identifier == '\0';
}

int TVMAotExecutor_GetInputIndex(TVMAotExecutor* executor, const char* name) {
  const int count = TVMAotExecutor_GetNumInputs(executor);
  for (int i = 0; i < count; ++i) {
    if (strcmp(executor->metadata->inputs[i].name, name) == 0) return i;
  }
  for (int i = 0; i < count; ++i) {
    if (is_identifier_of(executor->metadata->inputs[i].name, name)) return i;
  }
  return -1;
}

static tvm_crt_error_t no_such(const char* what, int count) {
  return tvm_crt_fail(kTvmErrorExecutorModuleNoSuchInput, "the model has %u %s, none at the given position",
                      (uint32_t)count, what);
}

int TVMAotExecutor_GetInputName(TVMAotExecutor* executor, int index, char** name) {
  const int count = TVMAotExecutor_GetNumInputs(executor);
  *name = NULL;
  if (index < 0 || index >= count) return no_such("inputs", count);
  memcpy(name, &executor->metadata->inputs[index].name, sizeof(*name));
  return 0;
}

int TVMAotExecutor_GetInput(TVMAotExecutor* executor, int index, DLTensor** tensor) {
  const int count = TVMAotExecutor_GetNumInputs(executor);
  *tensor = NULL;
  if (index < 0 || index >= count) return no_such("inputs", count);
  *tensor = &executor->tensors[index];
  return 0;
}

int TVMAotExecutor_GetOutput(TVMAotExecutor* executor, int index, DLTensor** tensor) {
  const int count = TVMAotExecutor_GetNumOutputs(executor);
  *tensor = NULL;
  if (index < 0 || index >= count) return no_such("outputs", count);
  *tensor = &executor->tensors[TVMAotExecutor_GetNumInputs(executor) + index];
  return 0;
}

int TVMAotExecutor_Run(TVMAotExecutor* executor) {
  TVMValue value;
  int code = kTVMNullptr;
  return executor->run(executor->values, executor->codes, executor->num_args, &value, &code, NULL);
}

int TVMAotExecutor_Release(TVMAotExecutor* executor, const DLDevice device) {
  tvm_crt_error_t error = kTvmErrorNoError;
  for (int i = 0; i < executor->num_args; ++i) {
    const tvm_crt_error_t other = tvm_crt_block_free(&executor->blocks[i]);
    if (error == kTvmErrorNoError) error = other;
  }
  const tvm_crt_error_t other = TVMPlatformMemoryFree(executor, device);
  return error != kTvmErrorNoError ? error : other;
}
