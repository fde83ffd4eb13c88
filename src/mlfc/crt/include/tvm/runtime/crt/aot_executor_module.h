/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The AOT executor as a module, for callers that only use packed functions */
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
 * Each call creates a new executor, which is freed with its module. If no module is named "default", this name refers
 * to the only module with tables.
 */
TVM_DLL tvm_crt_error_t TVMAotExecutorModule_Register(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_AOT_EXECUTOR_MODULE_H_ */
