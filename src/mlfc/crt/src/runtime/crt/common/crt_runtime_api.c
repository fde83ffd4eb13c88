/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/crt.h>

#include "config.h"
#include "context.h"
#include "error_text.h"
#include "handles.h"

/*
 * A module's handle is its index with bit 15 set; a function's handle is its module's, shifted by 16 bits, and its
 * index with bit 15 set. The table of global functions has the index after the last module's. No handle is NULL, and
 * all fit in 32 bits.
 */
enum { VALID = 0x8000, GLOBALS = TVM_CRT_MAX_REGISTERED_MODULES };

typedef struct {
  const TVMModule* module;
  const ModuleMethods* methods;
  void* object;
} ModuleSlot;

static ModuleSlot modules[TVM_CRT_MAX_REGISTERED_MODULES];
static TVMMutableFuncRegistry globals;
static union {
  uint8_t bytes[TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES];
  TVMBackendPackedCFunc alignment;
} globals_memory;
static bool initialized = false;

static TVMModuleHandle module_handle(size_t index) { return (TVMModuleHandle)(uintptr_t)(index | VALID); }

static TVMFunctionHandle function_handle(size_t module_index, tvm_function_index_t index) {
  return (TVMFunctionHandle)(((uintptr_t)(module_index | VALID) << 16) | (uintptr_t)(index | VALID));
}

/* Returns the slot of a module's handle; NULL, with an error text, if invalid. */
static ModuleSlot* find_slot(TVMModuleHandle handle) {
  const uintptr_t value = (uintptr_t)handle;
  const uintptr_t index = value & ~(uintptr_t)VALID;
  if ((value & VALID) == 0 || index >= TVM_CRT_MAX_REGISTERED_MODULES || modules[index].module == NULL) {
    tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "%u is not the handle of a module", (uint32_t)value);
    return NULL;
  }
  return &modules[index];
}

/* Finds a function, and its resource handle. */
static tvm_crt_error_t function_of_handle(TVMFunctionHandle handle, TVMBackendPackedCFunc* out, void** object) {
  const uintptr_t value = (uintptr_t)handle;
  const uintptr_t module_part = value >> 16;
  const uintptr_t index = value & (VALID - 1);
  const uintptr_t module_index = module_part & ~(uintptr_t)VALID;
  const TVMFuncRegistry* registry = NULL;
  *object = NULL;
  if ((value & VALID) != 0 && (module_part & VALID) != 0) {
    if (module_index == GLOBALS && initialized) {
      registry = &globals.registry;
    } else if (module_index < GLOBALS && modules[module_index].module != NULL) {
      registry = modules[module_index].module->registry;
      *object = modules[module_index].object;
    }
  }
  if (registry == NULL) {
    return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "%u is not the handle of a function", (uint32_t)value);
  }
  return TVMFuncRegistry_GetByIndex(registry, (tvm_function_index_t)index, out);
}

#if TVM_CRT_SYSTEM_LIB
/* The global function runtime.SystemLib: returns the module of the functions linked into the program. */
static int system_lib(TVMValue* args, int* type_codes, int num_args, TVMValue* ret_value, int* ret_code,
                      void* resource_handle) {
  const TVMModule* module = TVMSystemLibEntryPoint();
  (void)args;
  (void)type_codes;
  (void)resource_handle;
  if (num_args != 0) {
    return tvm_crt_fail(kTvmErrorFunctionCallNumArguments, "runtime.SystemLib takes no arguments");
  }
  *ret_code = kTVMModuleHandle;
  for (size_t i = 0; i < TVM_CRT_MAX_REGISTERED_MODULES; ++i) {
    if (modules[i].module == module) {
      ret_value->v_handle = module_handle(i);
      return 0;
    }
  }
  return TVMModCreateFromCModule(module, &ret_value->v_handle);
}
#endif

tvm_crt_error_t TVMInitializeRuntime(void) {
  if (initialized) return kTvmErrorNoError;
  tvm_crt_error_t error =
      TVMMutableFuncRegistry_Create(&globals, globals_memory.bytes, TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES);
  if (error != kTvmErrorNoError) return error;
#if TVM_CRT_SYSTEM_LIB
  error = TVMMutableFuncRegistry_Set(&globals, "runtime.SystemLib", system_lib, 0);
  if (error != kTvmErrorNoError) return error;
#endif
  initialized = true;
  return kTvmErrorNoError;
}

tvm_crt_error_t tvm_crt_module_create(const TVMModule* mod, const ModuleMethods* methods, void* object,
                                      TVMModuleHandle* out_handle) {
  for (size_t i = 0; i < TVM_CRT_MAX_REGISTERED_MODULES; ++i) {
    if (modules[i].module == NULL) {
      modules[i].module = mod;
      modules[i].methods = methods;
      modules[i].object = object;
      *out_handle = module_handle(i);
      return kTvmErrorNoError;
    }
  }
  *out_handle = NULL;
  return tvm_crt_fail(kTvmErrorFunctionRegistryFull,
                      "all %u modules are taken: free one, or raise TVM_CRT_MAX_REGISTERED_MODULES",
                      (uint32_t)TVM_CRT_MAX_REGISTERED_MODULES);
}

int TVMModCreateFromCModule(const TVMModule* mod, TVMModuleHandle* out_handle) {
  return tvm_crt_module_create(mod, NULL, NULL, out_handle);
}

int TVMModFree(TVMModuleHandle mod) {
  ModuleSlot* slot = find_slot(mod);
  if (slot == NULL) return kTvmErrorFunctionCallInvalidArg;
  const ModuleSlot freed = *slot;
  memset(slot, 0, sizeof(*slot));
  if (freed.methods != NULL) freed.methods->release(freed.object);
  return 0;
}

bool tvm_crt_modules_hold(const void* address, size_t num_bytes) {
  for (size_t i = 0; i < TVM_CRT_MAX_REGISTERED_MODULES; ++i) {
    if (modules[i].methods != NULL && modules[i].methods->holds(modules[i].object, address, num_bytes)) return true;
  }
  return false;
}

ModuleSnapshot tvm_crt_modules_taken(void) {
  ModuleSnapshot now;
  for (size_t i = 0; i < TVM_CRT_MAX_REGISTERED_MODULES; ++i) now.taken[i] = modules[i].module != NULL;
  return now;
}

void tvm_crt_modules_free_since(const ModuleSnapshot* before) {
  for (size_t i = 0; i < TVM_CRT_MAX_REGISTERED_MODULES; ++i) {
    if (!before->taken[i] && modules[i].module != NULL) TVMModFree(module_handle(i));
  }
}

int TVMModGetFunction(TVMModuleHandle mod, const char* func_name, int query_imports, TVMFunctionHandle* out) {
  (void)query_imports;
  *out = NULL;
  const ModuleSlot* slot = find_slot(mod);
  if (slot == NULL) return kTvmErrorFunctionCallInvalidArg;
  tvm_function_index_t index;
  const tvm_crt_error_t error = TVMFuncRegistry_Lookup(slot->module->registry, func_name, &index);
  if (error != kTvmErrorNoError) return error;
  *out = function_handle((size_t)(slot - modules), index);
  return 0;
}

int TVMFuncGetGlobal(const char* name, TVMFunctionHandle* out) {
  *out = NULL;
  tvm_crt_error_t error = TVMInitializeRuntime();
  if (error != kTvmErrorNoError) return error;
  tvm_function_index_t index;
  error = TVMFuncRegistry_Lookup(&globals.registry, name, &index);
  if (error != kTvmErrorNoError) return error;
  *out = function_handle(GLOBALS, index);
  return 0;
}

static int find_own_function(void* mod_node, const char* func_name, TVMFunctionHandle* out) {
  if (mod_node != NULL && TVMModGetFunction(mod_node, func_name, 1, out) == 0) return 0;
  return TVMFuncGetGlobal(func_name, out);
}

int TVMBackendGetFuncFromEnv(void* mod_node, const char* func_name, TVMFunctionHandle* out) {
  TVM_CRT_FORWARD(__TVMBackendGetFuncFromEnv, (mod_node, func_name, out));
  return find_own_function(mod_node, func_name, out);
}

tvm_crt_error_t tvm_crt_find_function(TVMModuleHandle module, const char* name, TVMBackendPackedCFunc* out) {
  TVMFunctionHandle handle;
  void* object;
  const int error = find_own_function(module, name, &handle);
  return error != 0 ? (tvm_crt_error_t)error : function_of_handle(handle, out, &object);
}

static bool is_between(const char* name, const char* prefix, const char* suffix) {
  const size_t length = strlen(name);
  const size_t prefix_length = strlen(prefix);
  const size_t suffix_length = strlen(suffix);
  return length >= prefix_length + suffix_length && memcmp(name, prefix, prefix_length) == 0 &&
         memcmp(name + length - suffix_length, suffix, suffix_length) == 0;
}

const char* tvm_crt_only_function(TVMModuleHandle module, const char* prefix, const char* suffix) {
  const ModuleSlot* slot = find_slot(module);
  const char* found = NULL;
  if (slot == NULL) return NULL;
  const char* name = slot->module->registry->names + sizeof(uint16_t);
  for (uint16_t left = TVMFuncRegistry_GetNumFuncs(slot->module->registry); left > 0; --left) {
    if (is_between(name, prefix, suffix)) {
      if (found != NULL) return NULL;
      found = name;
    }
    name += strlen(name) + 1;
  }
  return found;
}

/* Function and data pointers have the same representation on all machines that TVM's void* handles support. */
static TVMBackendPackedCFunc as_function(void* pointer) {
  union {
    void* pointer;
    TVMBackendPackedCFunc function;
  } both = {pointer};
  return both.function;
}

static tvm_crt_error_t set_global(const char* name, TVMBackendPackedCFunc function, int override) {
  const tvm_crt_error_t error = TVMInitializeRuntime();
  return error != kTvmErrorNoError ? error : TVMMutableFuncRegistry_Set(&globals, name, function, override);
}

tvm_crt_error_t tvm_crt_register_global(const char* name, TVMBackendPackedCFunc function) {
  return set_global(name, function, 0);
}

int TVMFuncRegisterGlobal(const char* name, TVMFunctionHandle f, int override) {
  return set_global(name, as_function(f), override);
}

int TVMBackendRegisterSystemLibSymbol(const char* name, void* ptr) { return TVMFuncRegisterGlobal(name, ptr, 0); }

int TVMFuncFree(TVMFunctionHandle func) {
  TVMBackendPackedCFunc function;
  void* object;
  return function_of_handle(func, &function, &object);
}

int TVMFuncCall(TVMFunctionHandle func, TVMValue* arg_values, int* type_codes, int num_args, TVMValue* ret_val,
                int* ret_type_code) {
  TVM_CRT_FORWARD(__TVMFuncCall, (func, arg_values, type_codes, num_args, ret_val, ret_type_code));
  TVMBackendPackedCFunc function;
  void* object;
  const tvm_crt_error_t error = function_of_handle(func, &function, &object);
  if (error != kTvmErrorNoError) return error;
  *ret_type_code = kTVMNullptr;
  return function(arg_values, type_codes, num_args, ret_val, ret_type_code, object);
}

int TVMCFuncSetReturn(TVMRetValueHandle ret, TVMValue* value, int* type_code, int num_ret) {
  const TVMRetValue* result = (const TVMRetValue*)ret;
  if (num_ret != 1) {
    return tvm_crt_fail(kTvmErrorFunctionCallNumArguments, "a function returns one value, not %u", (uint32_t)num_ret);
  }
  *result->value = *value;
  *result->type_code = *type_code;
  return 0;
}
