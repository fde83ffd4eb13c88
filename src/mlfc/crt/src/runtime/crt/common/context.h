/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Functions of the process that loaded a library, which replace those of the library's runtime */
#ifndef TVM_RUNTIME_CRT_COMMON_CONTEXT_H_
#define TVM_RUNTIME_CRT_COMMON_CONTEXT_H_

#include <stddef.h>
#include <tvm/runtime/c_backend_api.h>

#include "config.h"

#if TVM_CRT_CONTEXT_POINTERS

/* Module loaders find these variables by name and set them; NULL if not set. */
extern TVM_DLL int (*__TVMFuncCall)(TVMFunctionHandle, TVMValue*, int*, int, TVMValue*, int*);
extern TVM_DLL void (*__TVMAPISetLastError)(const char*);
extern TVM_DLL int (*__TVMBackendGetFuncFromEnv)(void*, const char*, TVMFunctionHandle*);
extern TVM_DLL void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
extern TVM_DLL int (*__TVMBackendFreeWorkspace)(int, int, void*);
extern TVM_DLL int (*__TVMBackendParallelLaunch)(FTVMParallelLambda, void*, int);
extern TVM_DLL int (*__TVMBackendParallelBarrier)(int, TVMParallelGroupEnv*);

/* Returns the result of the process's function, if it is set. */
#define TVM_CRT_FORWARD(pointer, arguments)         \
  do {                                              \
    if ((pointer) != NULL) return pointer arguments; \
  } while (0)

#else
#define TVM_CRT_FORWARD(pointer, arguments) ((void)0)
#endif

#endif /* TVM_RUNTIME_CRT_COMMON_CONTEXT_H_ */
