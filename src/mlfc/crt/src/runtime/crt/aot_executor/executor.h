/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Internal functions of the AOT executor, for its module */
#ifndef TVM_RUNTIME_CRT_AOT_EXECUTOR_EXECUTOR_H_
#define TVM_RUNTIME_CRT_AOT_EXECUTOR_EXECUTOR_H_

#include <stdbool.h>
#include <stddef.h>
#include <tvm/runtime/crt/aot_executor.h>

/*!
 * \brief Creates an executor, like TVMAotExecutor_Create.
 *
 * microTVM's hosts request the module "default" regardless of its name: if none has this name, it refers to the only
 * module.
 */
int aot_executor_create_any(TVMModuleHandle module_handle, DLDevice device, TVMAotExecutor** executor,
                            const char* module_name);

/*! \brief Returns whether bytes lie in the memory of one of the executor's tensors. */
bool aot_executor_holds(const TVMAotExecutor* executor, const void* address, size_t num_bytes);

#endif /* TVM_RUNTIME_CRT_AOT_EXECUTOR_EXECUTOR_H_ */
