/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The AOT executor as a module, for callers that only know packed functions */
#ifndef TVM_RUNTIME_CRT_AOT_EXECUTOR_MODULE_H_
#define TVM_RUNTIME_CRT_AOT_EXECUTOR_MODULE_H_

#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/error_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

/*!
 * \brief Registers the global function tvm.aot_executor.create(module, device, module_name).
 *
 * Each call makes an executor of its own, which freeing its module releases. Where no module is named "default", that
 * name means the only one with tables.
 */
TVM_DLL tvm_crt_error_t TVMAotExecutorModule_Register(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_AOT_EXECUTOR_MODULE_H_ */
