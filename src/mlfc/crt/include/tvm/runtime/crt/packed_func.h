/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Packed functions with their arguments, for calls from firmware */
#ifndef TVM_RUNTIME_CRT_PACKED_FUNC_H_
#define TVM_RUNTIME_CRT_PACKED_FUNC_H_

#include <crt_config.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/module.h>
#include <tvm/runtime/crt/platform.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TVMArgs {
  TVMValue values[TVM_CRT_MAX_ARGS];
  int tcodes[TVM_CRT_MAX_ARGS];
  uint32_t values_count;
} TVMArgs;

typedef struct TVMPackedFunc {
  char name[TVM_CRT_MAX_STRLEN_FUNCTION_NAME];
  TVMFunctionHandle fexec;
  TVMArgs args;
  TVMArgs ret_value;
  int (*Call)(struct TVMPackedFunc* pf);
  void (*SetArgs)(struct TVMPackedFunc* pf, const struct TVMArgs* args);
} TVMPackedFunc;

/*! \brief Packs arguments; aborts the program for more than TVM_CRT_MAX_ARGS, since it cannot return an error. */
TVMArgs TVMArgs_Create(TVMValue* values, uint32_t* tcodes, uint32_t values_count);

/*! \brief Returns a module argument or result; NULL, with an error text, for another type. */
TVMModuleHandle TVMArgs_AsModuleHandle(const TVMArgs* args, size_t index);

/*! \brief Prepares a call of a global function. */
int TVMPackedFunc_InitGlobalFunc(TVMPackedFunc* pf, const char* name, const TVMArgs* args);

/*! \brief Prepares a call of a module's function. */
int TVMPackedFunc_InitModuleFunc(TVMPackedFunc* pf, TVMModuleHandle module, const char* name, const TVMArgs* args);

/*! \brief Calls the function; `ret_value` has one value afterwards, or none if the call failed. Returns the error. */
int TVMPackedFunc_Call(TVMPackedFunc* pf);

/*! \brief Replaces the arguments. */
void TVMPackedFunc_SetArgs(TVMPackedFunc* pf, const TVMArgs* args);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_PACKED_FUNC_H_ */
