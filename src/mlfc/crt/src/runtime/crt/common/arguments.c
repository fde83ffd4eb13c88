/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "arguments.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "error_text.h"

static bool is_kind(char kind, int code) {
  switch (kind) {
    case 'i': return code == kTVMArgInt;
    case 'd': return code == kDLDevice;
    case 's': return code == kTVMStr;
    case 'b': return code == kTVMBytes;
    case 'm': return code == kTVMModuleHandle;
    case 't': return code == kTVMDLTensorHandle || code == kTVMNDArrayHandle || code == kTVMOpaqueHandle;
    default: return code == kTVMStr || code == kTVMArgInt;
  }
}

tvm_crt_error_t tvm_crt_check_arguments(const char* function, const char* kinds, const int* type_codes, int num_args) {
  const size_t expected = strlen(kinds);
  if (num_args < 0 || (size_t)num_args != expected) {
    return tvm_crt_fail(kTvmErrorFunctionCallNumArguments, "%s takes %u arguments, not %u", function,
                        (uint32_t)expected, (uint32_t)num_args);
  }
  for (size_t i = 0; i < expected; ++i) {
    if (!is_kind(kinds[i], type_codes[i])) {
      return tvm_crt_fail(kTvmErrorFunctionCallWrongArgType, "argument %u of %s has type code %u", (uint32_t)i,
                          function, (uint32_t)type_codes[i]);
    }
  }
  return kTvmErrorNoError;
}

int tvm_crt_return_int(TVMValue* ret, int* ret_code, int value) {
  ret->v_int64 = value;
  *ret_code = kTVMArgInt;
  return 0;
}

int tvm_crt_return_tensor(TVMValue* ret, int* ret_code, DLTensor* tensor) {
  ret->v_handle = tensor;
  *ret_code = kTVMNDArrayHandle;
  return 0;
}
