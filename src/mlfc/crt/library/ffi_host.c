/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*
 * Functions of tvm-ffi's library are looked up at run time instead of linked: linking would make that library mandatory
 * for all callers, and weak symbols stay NULL if it is loaded after this one.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#define _DARWIN_C_SOURCE
#include "ffi_host.h"

#include <stdlib.h>
#include <string.h>

#if defined(__wasm__)
static void* find(const char* name) {
  (void)name;
  return NULL;
}
#elif defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
static void* find(const char* name) {
  const HMODULE library = GetModuleHandleA("tvm_ffi.dll");
  union {
    FARPROC function;
    void* pointer;
  } both = {library == NULL ? NULL : GetProcAddress(library, name)};
  return both.pointer;
}
#elif defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#if defined(__ELF__)
#pragma weak dlsym /* on older systems in a separate library, which a loader of libraries has loaded */
static void* find(const char* name) { return &dlsym == NULL ? NULL : dlsym(RTLD_DEFAULT, name); }
#else
static void* find(const char* name) { return dlsym(RTLD_DEFAULT, name); }
#endif
#else
static void* find(const char* name) {
  (void)name;
  return NULL;
}
#endif

struct managed_tensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(struct managed_tensor* self);
};

/* A pointer to one of the functions, with its type. */
union function {
  void* pointer;
  void (*set_raised)(const char* kind, const char* message);
  void* (*get_allocator)(void);
  int (*allocate)(DLTensor* prototype, void** out);
  int (*from_dlpack)(struct managed_tensor* from, int32_t alignment, int32_t contiguous, void** out);
  int (*new_string)(const struct mlfc_bytes* text, struct mlfc_any* out);
  int (*get_global)(const struct mlfc_bytes* name, void** out);
  int (*call)(void* function, struct mlfc_any* args, int32_t num_args, struct mlfc_any* result);
  int (*decref)(void* object);
};

/* Looks up a function on first use. */
static int get(const char* name, void** known, union function* out) {
  out->pointer = __atomic_load_n(known, __ATOMIC_RELAXED);
  if (out->pointer == NULL) {
    out->pointer = find(name);
    __atomic_store_n(known, out->pointer, __ATOMIC_RELAXED);
  }
  return out->pointer != NULL;
}

static int lacking(struct mlfc_failure* failure, const char* name) {
  return mlfc_fail(failure, "RuntimeError", "there is no %s in this process, which tvm-ffi's library has", name);
}

int mlfc_ffi_raise(const struct mlfc_failure* failure) {
  static void* known;
  union function raise;
  TVMAPISetLastError(failure->text);
  if (failure->kind != NULL && get("TVMFFIErrorSetRaisedFromCStr", &known, &raise)) raise.set_raised(failure->kind, failure->text);
  return -1;
}

static void free_tensor(struct managed_tensor* self) { free(self->context); }

/* One block: the struct, shape, strides, and the elements at the next multiple of 64 bytes. */
static struct managed_tensor* new_tensor(const struct mlfc_parameter* parameter, DLDataType dtype) {
  const size_t lists = 2 * (size_t)parameter->ndim * sizeof(int64_t);
  struct managed_tensor* made = NULL;
  int64_t stride = 1;
  if (parameter->num_bytes > SIZE_MAX - sizeof *made - lists - 64) return NULL;
  made = (struct managed_tensor*)malloc(sizeof *made + lists + 64 + (size_t)parameter->num_bytes);
  if (made == NULL) return NULL;
  memset(made, 0, sizeof *made);
  made->context = made;
  made->deleter = free_tensor;
  made->tensor.device.device_type = kDLCPU;
  made->tensor.ndim = parameter->ndim;
  made->tensor.dtype = dtype;
  made->tensor.shape = (int64_t*)(made + 1);
  made->tensor.strides = made->tensor.shape + parameter->ndim;
  made->tensor.data = (char*)made->tensor.shape + lists;
  made->tensor.data = (char*)made->tensor.data + (64 - (uintptr_t)made->tensor.data % 64) % 64;
  for (int32_t axis = parameter->ndim - 1; axis >= 0; --axis) {
    made->tensor.shape[axis] = parameter->shape[axis];
    made->tensor.strides[axis] = stride;
    stride *= parameter->shape[axis];
  }
  return made;
}

int mlfc_ffi_tensor(const struct mlfc_parameter* parameter, struct mlfc_any* out,
                       struct mlfc_failure* failure) {
  static void *known_allocator, *known_allocate, *known_take;
  union function allocator, take;
  DLDataType dtype = parameter->dtype;
  struct managed_tensor* made = NULL;
  if (dtype.bits == 1) { /* the bool type of other libraries' arrays */
    dtype.code = MLFC_DLPACK_BOOL;
    dtype.bits = 8;
  }
  out->type_index = kFfiTensor;
  out->small_length = 0;
  /* allocate by the framework of the caller's tensors, if it is registered */
  if (get("TVMFFIEnvGetDLPackManagedTensorAllocator", &known_allocator, &allocator) &&
      allocator.get_allocator() != NULL) {
    DLTensor prototype = {NULL, {kDLCPU, 0}, parameter->ndim, dtype, (int64_t*)(uintptr_t)parameter->shape, NULL, 0};
    if (!get("TVMFFIEnvTensorAlloc", &known_allocate, &take)) return lacking(failure, "TVMFFIEnvTensorAlloc");
    if (take.allocate(&prototype, &out->value.v_ptr) == 0) return 0;
    return mlfc_fail(failure, "RuntimeError", "no memory for %s", parameter->name);
  }
  if (!get("TVMFFITensorFromDLPack", &known_take, &take)) return lacking(failure, "TVMFFITensorFromDLPack");
  made = new_tensor(parameter, dtype);
  if (made != NULL) {
    if (take.from_dlpack(made, 0, 0, &out->value.v_ptr) == 0) return 0;
    free_tensor(made);
  }
  return mlfc_fail(failure, "RuntimeError", "no memory for %s", parameter->name);
}

int mlfc_ffi_string(const char* text, struct mlfc_any* out, struct mlfc_failure* failure) {
  static void* known;
  union function make;
  const struct mlfc_bytes content = {text, strlen(text)};
  if (!get("TVMFFIStringFromByteArray", &known, &make)) return lacking(failure, "TVMFFIStringFromByteArray");
  if (make.new_string(&content, out) == 0) return 0;
  return mlfc_fail(failure, "RuntimeError", "no memory for a string");
}

int mlfc_ffi_call(const char* name, void** known, struct mlfc_any* args, int32_t count, struct mlfc_any* out,
                  struct mlfc_failure* failure) {
  static void *known_global, *known_call;
  const struct mlfc_bytes text = {name, strlen(name)};
  union function global, call;
  void* function = __atomic_load_n(known, __ATOMIC_RELAXED);
  if (!get("TVMFFIFunctionGetGlobal", &known_global, &global)) return lacking(failure, "TVMFFIFunctionGetGlobal");
  if (!get("TVMFFIFunctionCall", &known_call, &call)) return lacking(failure, "TVMFFIFunctionCall");
  if (function == NULL) { /* global functions live as long as the process */
    if (global.get_global(&text, &function) != 0 || function == NULL) return lacking(failure, name);
    __atomic_store_n(known, function, __ATOMIC_RELAXED);
  }
  if (call.call(function, args, count, out) == 0) return 0;
  mlfc_fail(failure, "", "the function %s failed", name);
  failure->kind = NULL; /* the function has raised its own error */
  return -1;
}

int mlfc_ffi_array(struct mlfc_any* values, int32_t count, struct mlfc_any* out,
                      struct mlfc_failure* failure) {
  static void* known;
  return mlfc_ffi_call("ffi.Array", &known, values, count, out, failure);
}

void mlfc_ffi_release(struct mlfc_any* value) {
  static void* known;
  union function release;
  if (value->type_index >= 64 && get("TVMFFIObjectDecRef", &known, &release)) release.decref(value->value.v_ptr);
}
