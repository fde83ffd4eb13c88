/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Start of the C runtime */
#ifndef TVM_RUNTIME_CRT_CRT_H_
#define TVM_RUNTIME_CRT_CRT_H_

#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/error_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

/*!
 * \brief Initializes the runtime; must be called before its other functions. Later calls have no effect.
 *
 * The tables of modules and functions are global and have no lock: only one thread at a time may modify them. Error
 * texts are per thread if crt_config.h defines TVM_CRT_THREAD_LOCAL.
 */
TVM_DLL tvm_crt_error_t TVMInitializeRuntime(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_CRT_H_ */
