/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* The variables by which module loaders recognize a library, and pass it functions of their process. */
#include "../src/runtime/crt/common/context.h"

#include "mlfc_abi.h"

extern TVM_DLL const int32_t mlfc_abi_version;
const int32_t mlfc_abi_version = MLFC_ABI_VERSION;

extern TVM_DLL const struct mlfc_digest mlfc_digest;
const struct mlfc_digest mlfc_digest = {MLFC_DIGEST_MARK, {0}};

/* The loader's module handle of this library, which TVMBackendGetFuncFromEnv uses to find imported functions. */
#if defined(__APPLE__)
/* TVM's C for hosts defines it, too. A loader would merge weak variables of several libraries, but not common ones. */
__attribute__((common)) void* __tvm_module_ctx;
#elif defined(__GNUC__)
__attribute__((weak)) void* __tvm_module_ctx = NULL; /* TVM's C for hosts defines it, too. */
#else
void* __tvm_module_ctx = NULL;
#endif

int (*__TVMFuncCall)(TVMFunctionHandle, TVMValue*, int*, int, TVMValue*, int*) = NULL;
void (*__TVMAPISetLastError)(const char*) = NULL;
int (*__TVMBackendGetFuncFromEnv)(void*, const char*, TVMFunctionHandle*) = NULL;
void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = NULL;
int (*__TVMBackendFreeWorkspace)(int, int, void*) = NULL;
int (*__TVMBackendParallelLaunch)(FTVMParallelLambda, void*, int) = NULL;
int (*__TVMBackendParallelBarrier)(int, TVMParallelGroupEnv*) = NULL;
