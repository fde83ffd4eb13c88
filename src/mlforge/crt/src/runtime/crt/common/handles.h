/* Part of mlforge's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief What executors and their modules know of handles beyond the public functions */
#ifndef TVM_RUNTIME_CRT_COMMON_HANDLES_H_
#define TVM_RUNTIME_CRT_COMMON_HANDLES_H_

#include <tvm/runtime/crt/module.h>

/*! \brief Gives a module a handle; `release`, unless NULL, is called when the handle is freed. */
tvm_crt_error_t tvm_crt_module_create(const TVMModule* mod, void (*release)(void), TVMModuleHandle* out_handle);

/*! \brief Finds a function of a module, else a global one, so that it can be called without its handle. */
tvm_crt_error_t tvm_crt_find_function(TVMModuleHandle module, const char* name, TVMBackendPackedCFunc* out);

/*! \brief Adds a global function that is not there yet. */
tvm_crt_error_t tvm_crt_register_global(const char* name, TVMBackendPackedCFunc function);

#endif /* TVM_RUNTIME_CRT_COMMON_HANDLES_H_ */
