/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief What the module of an AOT executor knows of it beyond the public functions */
#ifndef TVM_RUNTIME_CRT_AOT_EXECUTOR_EXECUTOR_H_
#define TVM_RUNTIME_CRT_AOT_EXECUTOR_EXECUTOR_H_

#include <stdbool.h>
#include <stddef.h>
#include <tvm/runtime/crt/aot_executor.h>

/*!
 * \brief Creates an executor, as TVMAotExecutor_Create does.
 *
 * microTVM's hosts ask for the module "default" whatever its name is: where there is none of this name, that means the
 * only one that there is.
 */
int aot_executor_create_any(TVMModuleHandle module_handle, DLDevice device, TVMAotExecutor** executor,
                            const char* module_name);

/*! \brief Returns whether bytes lie in the memory of one of the executor's tensors. */
bool aot_executor_holds(const TVMAotExecutor* executor, const void* address, size_t num_bytes);

#endif /* TVM_RUNTIME_CRT_AOT_EXECUTOR_EXECUTOR_H_ */
