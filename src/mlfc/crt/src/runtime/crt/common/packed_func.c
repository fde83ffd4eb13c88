/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* crt_config.h determines the size of the structs in packed_func.h, so the defaults must come first. */
#include "config.h"

#include <string.h>
#include <tvm/runtime/crt/packed_func.h>
#include <tvm/runtime/crt/platform.h>

#include "error_text.h"

TVMArgs TVMArgs_Create(TVMValue* values, uint32_t* tcodes, uint32_t values_count) {
  TVMArgs args;
  if (values_count > TVM_CRT_MAX_ARGS) TVMPlatformAbort(kTvmErrorFunctionCallNumArguments);
  memset(&args, 0, sizeof(args));
  args.values_count = values_count;
  for (uint32_t i = 0; i < values_count; ++i) {
    args.values[i] = values[i];
    args.tcodes[i] = (int)tcodes[i];
  }
  return args;
}

TVMModuleHandle TVMArgs_AsModuleHandle(const TVMArgs* args, size_t index) {
  if (index >= args->values_count || args->tcodes[index] != kTVMModuleHandle) {
    tvm_crt_fail(kTvmErrorFunctionCallWrongArgType, "value %u is not a module", (uint32_t)index);
    return NULL;
  }
  return args->values[index].v_handle;
}

int TVMPackedFunc_Call(TVMPackedFunc* pf) {
  const int error = TVMFuncCall(pf->fexec, pf->args.values, pf->args.tcodes, (int)pf->args.values_count,
                                &pf->ret_value.values[0], &pf->ret_value.tcodes[0]);
  pf->ret_value.values_count = error == 0 ? 1 : 0;
  return error;
}

void TVMPackedFunc_SetArgs(TVMPackedFunc* pf, const TVMArgs* args) { pf->args = *args; }

static tvm_crt_error_t prepare(TVMPackedFunc* pf, const char* name, const TVMArgs* args) {
  const size_t size = strlen(name) + 1;
  memset(pf, 0, sizeof(*pf));
  if (size > sizeof(pf->name)) {
    return tvm_crt_fail(kTvmErrorDataLimitExceeded,
                        "the name of a function is too long: raise TVM_CRT_MAX_STRLEN_FUNCTION_NAME");
  }
  memcpy(pf->name, name, size);
  pf->Call = TVMPackedFunc_Call;
  pf->SetArgs = TVMPackedFunc_SetArgs;
  TVMPackedFunc_SetArgs(pf, args);
  return kTvmErrorNoError;
}

int TVMPackedFunc_InitGlobalFunc(TVMPackedFunc* pf, const char* name, const TVMArgs* args) {
  const tvm_crt_error_t error = prepare(pf, name, args);
  return error != kTvmErrorNoError ? error : TVMFuncGetGlobal(name, &pf->fexec);
}

int TVMPackedFunc_InitModuleFunc(TVMPackedFunc* pf, TVMModuleHandle module, const char* name, const TVMArgs* args) {
  const tvm_crt_error_t error = prepare(pf, name, args);
  return error != kTvmErrorNoError ? error : TVMModGetFunction(module, name, 0, &pf->fexec);
}
