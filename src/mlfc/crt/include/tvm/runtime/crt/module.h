/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Modules: tables of functions, referred to by handles */
#ifndef TVM_RUNTIME_CRT_MODULE_H_
#define TVM_RUNTIME_CRT_MODULE_H_

#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/func_registry.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TVMModule {
  const TVMFuncRegistry* registry;
} TVMModule;

/*! \brief The functions linked into the program; code generated with a system library defines it. */
const TVMModule* TVMSystemLibEntryPoint(void);

/*! \brief Creates a handle for a module, which must not move until TVMModFree. */
TVM_DLL int TVMModCreateFromCModule(const TVMModule* mod, TVMModuleHandle* out_handle);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_MODULE_H_ */
