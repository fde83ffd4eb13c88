/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Functions with their arguments, to be called from firmware */
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

/*! \brief Packs arguments; more than TVM_CRT_MAX_ARGS abort the program, since there is no way to say so. */
TVMArgs TVMArgs_Create(TVMValue* values, uint32_t* tcodes, uint32_t values_count);

/*! \brief Returns an argument or a result that is a module; NULL and an error text when it is not one. */
TVMModuleHandle TVMArgs_AsModuleHandle(const TVMArgs* args, size_t index);

/*! \brief Prepares a call of a global function. */
int TVMPackedFunc_InitGlobalFunc(TVMPackedFunc* pf, const char* name, const TVMArgs* args);

/*! \brief Prepares a call of a module's function. */
int TVMPackedFunc_InitModuleFunc(TVMPackedFunc* pf, TVMModuleHandle module, const char* name, const TVMArgs* args);

/*! \brief Calls the function; `ret_value` holds one value afterwards, or none if the call failed. Returns its error. */
int TVMPackedFunc_Call(TVMPackedFunc* pf);

/*! \brief Replaces the arguments. */
void TVMPackedFunc_SetArgs(TVMPackedFunc* pf, const TVMArgs* args);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_PACKED_FUNC_H_ */
