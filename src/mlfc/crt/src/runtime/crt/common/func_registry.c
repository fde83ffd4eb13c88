/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>
#include <tvm/runtime/crt/func_registry.h>

#include "error_text.h"

enum { COUNT_BYTES = 2 };

uint16_t TVMFuncRegistry_GetNumFuncs(const TVMFuncRegistry* reg) {
  const unsigned char* count = (const unsigned char*)reg->names;
  return (uint16_t)(count[0] | (count[1] << 8));
}

tvm_crt_error_t TVMFuncRegistry_Lookup(const TVMFuncRegistry* reg, const char* name,
                                       tvm_function_index_t* function_index) {
  const uint16_t count = TVMFuncRegistry_GetNumFuncs(reg);
  const char* candidate = reg->names + COUNT_BYTES;
  for (uint16_t i = 0; i < count; ++i) {
    if (strcmp(candidate, name) == 0) {
      *function_index = i;
      return kTvmErrorNoError;
    }
    candidate += strlen(candidate) + 1;
  }
  return tvm_crt_fail(kTvmErrorFunctionNameNotFound, "there is no function %s", name);
}

tvm_crt_error_t TVMFuncRegistry_GetByIndex(const TVMFuncRegistry* reg, tvm_function_index_t index,
                                           TVMBackendPackedCFunc* out_func) {
  const uint16_t count = TVMFuncRegistry_GetNumFuncs(reg);
  if (index >= count) {
    return tvm_crt_fail(kTvmErrorFunctionIndexInvalid, "function %u was asked for in a table of %u", (uint32_t)index,
                        (uint32_t)count);
  }
  *out_func = reg->funcs[index];
  return kTvmErrorNoError;
}

/* The buffer contains the pointers, which must be aligned, then the names. */
tvm_crt_error_t TVMMutableFuncRegistry_Create(TVMMutableFuncRegistry* reg, uint8_t* buffer, size_t buffer_size_bytes) {
  const size_t entry = TVM_CRT_FUNC_REGISTRY_SIZE_BYTES(1) - TVM_CRT_FUNC_REGISTRY_SIZE_BYTES(0);
  const size_t misaligned = (size_t)((uintptr_t)buffer % sizeof(TVMBackendPackedCFunc));
  const size_t padding = misaligned == 0 ? 0 : sizeof(TVMBackendPackedCFunc) - misaligned;
  if (buffer == NULL || buffer_size_bytes < padding + TVM_CRT_FUNC_REGISTRY_SIZE_BYTES(1)) {
    return tvm_crt_fail(kTvmErrorBufferTooSmall, "a function table needs a buffer of at least %u bytes",
                        (uint32_t)(padding + TVM_CRT_FUNC_REGISTRY_SIZE_BYTES(1)));
  }
  reg->max_functions = (buffer_size_bytes - padding - COUNT_BYTES) / entry;
  if (reg->max_functions > UINT16_MAX) reg->max_functions = UINT16_MAX;
  memset(buffer, 0, buffer_size_bytes);
  uint8_t* funcs = buffer + padding;
  reg->registry.funcs = (const TVMBackendPackedCFunc*)(void*)funcs;
  reg->registry.names = (const char*)(funcs + reg->max_functions * sizeof(TVMBackendPackedCFunc));
  return kTvmErrorNoError;
}

/* Bytes that TVMMutableFuncRegistry_Create reserved for names: names that do not fit are rejected. */
static size_t names_capacity(const TVMMutableFuncRegistry* reg) {
  return COUNT_BYTES + reg->max_functions * (TVM_CRT_AVERAGE_FUNCTION_NAME_STRLEN + 1);
}

tvm_crt_error_t TVMMutableFuncRegistry_Set(TVMMutableFuncRegistry* reg, const char* name, TVMBackendPackedCFunc func,
                                           int override) {
  /* The table is in the caller's writable buffer. */
  char* names = (char*)reg->registry.names;
  TVMBackendPackedCFunc* funcs = (TVMBackendPackedCFunc*)reg->registry.funcs;
  const uint16_t count = TVMFuncRegistry_GetNumFuncs(&reg->registry);
  size_t end = COUNT_BYTES;
  for (uint16_t i = 0; i < count; ++i) {
    if (strcmp(names + end, name) == 0) {
      if (!override) {
        return tvm_crt_fail(kTvmErrorFunctionAlreadyDefined, "the function %s is there already", name);
      }
      funcs[i] = func;
      return kTvmErrorNoError;
    }
    end += strlen(names + end) + 1;
  }
  const size_t size = strlen(name) + 1;
  if (count >= reg->max_functions || size > names_capacity(reg) - end) {
    return tvm_crt_fail(kTvmErrorFunctionRegistryFull,
                        "the function table has no room for %s: raise TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES", name);
  }
  memcpy(names + end, name, size);
  funcs[count] = func;
  names[0] = (char)((count + 1) & 0xff);
  names[1] = (char)((count + 1) >> 8);
  return kTvmErrorNoError;
}
