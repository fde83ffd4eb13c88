/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Functions of the process that loaded a library, which then take the place of the library's own runtime */
#ifndef TVM_RUNTIME_CRT_COMMON_CONTEXT_H_
#define TVM_RUNTIME_CRT_COMMON_CONTEXT_H_

#include <stddef.h>
#include <tvm/runtime/c_backend_api.h>

#include "config.h"

#if TVM_CRT_CONTEXT_POINTERS

/* Loaders of modules find these variables by name and fill them; NULL where nobody did. */
extern TVM_DLL int (*__TVMFuncCall)(TVMFunctionHandle, TVMValue*, int*, int, TVMValue*, int*);
extern TVM_DLL void (*__TVMAPISetLastError)(const char*);
extern TVM_DLL int (*__TVMBackendGetFuncFromEnv)(void*, const char*, TVMFunctionHandle*);
extern TVM_DLL void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
extern TVM_DLL int (*__TVMBackendFreeWorkspace)(int, int, void*);
extern TVM_DLL int (*__TVMBackendParallelLaunch)(FTVMParallelLambda, void*, int);
extern TVM_DLL int (*__TVMBackendParallelBarrier)(int, TVMParallelGroupEnv*);

/* Returns what the process's function returns, where there is one. */
#define TVM_CRT_FORWARD(pointer, arguments)         \
  do {                                              \
    if ((pointer) != NULL) return pointer arguments; \
  } while (0)

#else
#define TVM_CRT_FORWARD(pointer, arguments) ((void)0)
#endif

#endif /* TVM_RUNTIME_CRT_COMMON_CONTEXT_H_ */
