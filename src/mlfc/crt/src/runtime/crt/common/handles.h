/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Internal functions on handles, for executors and their modules */
#ifndef TVM_RUNTIME_CRT_COMMON_HANDLES_H_
#define TVM_RUNTIME_CRT_COMMON_HANDLES_H_

#include <stdbool.h>
#include <stddef.h>
#include <tvm/runtime/crt/module.h>

#include "config.h"

/*! \brief Operations on the objects of modules of one kind, in addition to calls of their functions. */
typedef struct {
  /*! \brief Called when the module's handle is freed. */
  void (*release)(void* object);
  /*! \brief Returns whether bytes lie in the memory of one of the object's tensors. */
  bool (*holds)(const void* object, const void* address, size_t num_bytes);
} ModuleMethods;

/*!
 * \brief Creates a handle for a module.
 * \param mod Its functions, which receive `object` as their resource handle.
 * \param methods Operations on the object; NULL without one.
 */
tvm_crt_error_t tvm_crt_module_create(const TVMModule* mod, const ModuleMethods* methods, void* object,
                                      TVMModuleHandle* out_handle);

/*! \brief Returns whether bytes lie in the memory of a tensor of some module's object. */
bool tvm_crt_modules_hold(const void* address, size_t num_bytes);

/*! \brief Snapshot of the module handles in use. */
typedef struct {
  bool taken[TVM_CRT_MAX_REGISTERED_MODULES];
} ModuleSnapshot;

/*! \brief Returns the module handles in use. */
ModuleSnapshot tvm_crt_modules_taken(void);

/*! \brief Frees the modules created since the snapshot. */
void tvm_crt_modules_free_since(const ModuleSnapshot* before);

/*! \brief Finds a function of a module, else a global one, so that it can be called without its handle. */
tvm_crt_error_t tvm_crt_find_function(TVMModuleHandle module, const char* name, TVMBackendPackedCFunc* out);

/*!
 * \brief Finds the only function of a module with this prefix and suffix.
 * \return Its name; NULL if none or several match.
 */
const char* tvm_crt_only_function(TVMModuleHandle module, const char* prefix, const char* suffix);

/*! \brief Adds a global function unless one of this name exists. */
tvm_crt_error_t tvm_crt_register_global(const char* name, TVMBackendPackedCFunc function);

#endif /* TVM_RUNTIME_CRT_COMMON_HANDLES_H_ */
