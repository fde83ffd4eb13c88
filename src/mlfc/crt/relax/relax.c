/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* TVM's runtime, if it is in this process, runs the bytecode; tvm-ffi alone does not have it. */
#include "mlfc_relax.h"

#include <string.h>

#include "../library/ffi_host.h"

/* The module of this library, set by tvm-ffi when it loads the library; borrowed. Other code may define it, too. */
extern TVM_DLL void* __tvm_ffi__library_ctx;
#if defined(__APPLE__)
__attribute__((common)) void* __tvm_ffi__library_ctx;
#elif defined(__GNUC__)
__attribute__((weak)) void* __tvm_ffi__library_ctx = NULL;
#else
void* __tvm_ffi__library_ctx = NULL;
#endif

/* Returns the object in the module: a C++ compiler places a table of functions before it. NULL if it is not there. */
static void* own_module(void) {
  for (int at = 8; __tvm_ffi__library_ctx != NULL && at >= 0; at -= 8) {
    char* object = (char*)__tvm_ffi__library_ctx + at;
    int32_t type_index;
    memcpy(&type_index, object + 8, sizeof type_index); /* after the reference counts */
    if (type_index == kFfiModule) return object;
  }
  return NULL;
}

/* Loads the executable, imports this library into it, and calls its own function vm_load_executable. */
static int load(struct mlfc_any* code, void* library, struct mlfc_any* owned, struct mlfc_any* result,
                struct mlfc_failure* failure) {
  static void *loader, *importer, *finder;
  struct mlfc_any args[3] = {{0}, {0}, {kFfiBool, 0, {0}}};
  struct mlfc_any none = {0};
  if (mlfc_ffi_call("ffi.Module.load_from_bytes.relax.VMExecutable", &loader, code, 1, &owned[0], failure) != 0) {
    return failure->kind == NULL ? -1
                                 : mlfc_fail(failure, "RuntimeError", "vm_load_executable requires TVM's runtime: "
                                             "import tvm; without TVM, call the model's function");
  }
  args[0] = owned[0];
  args[1].type_index = kFfiModule;
  args[1].value.v_ptr = library;
  if (mlfc_ffi_call("ffi.ModuleImportModule", &importer, args, 2, &none, failure) != 0) return -1;
  args[1].type_index = kFfiRawString;
  args[1].value.v_str = "vm_load_executable";
  if (mlfc_ffi_call("ffi.ModuleGetFunction", &finder, args, 3, &owned[1], failure) != 0) return -1;
  return mlfc_ffi_call("vm_load_executable", &owned[1].value.v_ptr, NULL, 0, result, failure);
}

int mlfc_relax_load(const unsigned char* code, size_t nbytes, struct mlfc_any* result) {
  const struct mlfc_bytes bytes = {(const char*)code, nbytes};
  struct mlfc_any stored = {kFfiBytesPointer, 0, {0}};
  struct mlfc_any owned[2] = {{0}, {0}}; /* the executable, and its function */
  struct mlfc_failure failure = {NULL, ""};
  void* const library = own_module();
  int status;
  stored.value.v_ptr = (void*)(uintptr_t)&bytes;
  if (library == NULL || result == NULL) {
    mlfc_fail(&failure, "RuntimeError", "vm_load_executable requires a library that tvm-ffi or TVM loaded");
    return mlfc_ffi_raise(&failure);
  }
  status = load(&stored, library, owned, result, &failure);
  mlfc_ffi_release(&owned[1]);
  mlfc_ffi_release(&owned[0]);
  return status == 0 ? 0 : mlfc_ffi_raise(&failure);
}
