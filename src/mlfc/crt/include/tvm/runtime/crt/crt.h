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
 * \brief Makes the runtime ready: to be called before anything else of it. Later calls change nothing.
 *
 * The tables of modules and functions belong to the whole program and have no lock: one thread at a time may change
 * them. Error texts belong to each thread where crt_config.h says how (TVM_CRT_THREAD_LOCAL).
 */
TVM_DLL tvm_crt_error_t TVMInitializeRuntime(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_CRT_H_ */
