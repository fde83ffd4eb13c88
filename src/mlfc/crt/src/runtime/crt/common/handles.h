/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief What executors and their modules know of handles beyond the public functions */
#ifndef TVM_RUNTIME_CRT_COMMON_HANDLES_H_
#define TVM_RUNTIME_CRT_COMMON_HANDLES_H_

#include <stdbool.h>
#include <stddef.h>
#include <tvm/runtime/crt/module.h>

#include "config.h"

/*! \brief What can be done with the objects behind modules of one kind, beside calling their functions. */
typedef struct {
  /*! \brief Called when the module's handle is freed. */
  void (*release)(void* object);
  /*! \brief Returns whether bytes lie in the memory of one of the object's tensors. */
  bool (*holds)(const void* object, const void* address, size_t num_bytes);
} ModuleMethods;

/*!
 * \brief Gives a module a handle.
 * \param mod Its functions, which get `object` as their resource handle.
 * \param methods Of the object; NULL where there is none.
 */
tvm_crt_error_t tvm_crt_module_create(const TVMModule* mod, const ModuleMethods* methods, void* object,
                                      TVMModuleHandle* out_handle);

/*! \brief Returns whether bytes lie in the memory of a tensor of some module's object. */
bool tvm_crt_modules_hold(const void* address, size_t num_bytes);

/*! \brief Which handles of modules were taken at some time. */
typedef struct {
  bool taken[TVM_CRT_MAX_REGISTERED_MODULES];
} ModuleSnapshot;

/*! \brief Returns which handles are taken now. */
ModuleSnapshot tvm_crt_modules_taken(void);

/*! \brief Frees the modules that were made since. */
void tvm_crt_modules_free_since(const ModuleSnapshot* before);

/*! \brief Finds a function of a module, else a global one, so that it can be called without its handle. */
tvm_crt_error_t tvm_crt_find_function(TVMModuleHandle module, const char* name, TVMBackendPackedCFunc* out);

/*!
 * \brief Finds the one function of a module whose name begins and ends so.
 * \return Its name; NULL where there is none, or there are several.
 */
const char* tvm_crt_only_function(TVMModuleHandle module, const char* prefix, const char* suffix);

/*! \brief Adds a global function that is not there yet. */
tvm_crt_error_t tvm_crt_register_global(const char* name, TVMBackendPackedCFunc function);

#endif /* TVM_RUNTIME_CRT_COMMON_HANDLES_H_ */
