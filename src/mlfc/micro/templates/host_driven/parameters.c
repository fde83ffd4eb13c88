/* SPDX-License-Identifier: 0BSD */
#include "parameters.h"

#include <tvm/runtime/c_backend_api.h>

extern const uint8_t parameter_data[];

/* The global function _lookup_linked_param(storage): where a block's parameter lies, or nothing. */
static int lookup(TVMValue *args, int *codes, int num_args, TVMValue *ret, int *ret_code, void *resource) {
  (void)resource;
  *ret_code = kTVMNullptr;
  if (num_args != 1 || codes[0] != kTVMArgInt) {
    TVMAPISetLastError("_lookup_linked_param takes the number of a storage");
    return -1;
  }
  for (uint32_t i = 0; i < parameter_count; ++i) {
    if (parameter_places[i].storage == args[0].v_int64) {
      ret->v_handle = (void *)(uintptr_t)(parameter_data + parameter_places[i].offset);
      *ret_code = kTVMOpaqueHandle;
    }
  }
  return 0;
}

int parameters_register(void) {
  union {
    TVMBackendPackedCFunc function;
    void *pointer;
  } both = {lookup};
  return TVMFuncRegisterGlobal("_lookup_linked_param", both.pointer, 1);
}

bool parameters_hold(const void *address, size_t nbytes) {
  const uintptr_t begin = (uintptr_t)parameter_data, at = (uintptr_t)address;
  return at >= begin && at - begin <= parameter_bytes && nbytes <= parameter_bytes - (at - begin);
}
