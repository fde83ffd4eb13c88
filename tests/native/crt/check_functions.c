/* Function tables, handles, backend functions, arrays. */
#include <string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/crt.h>
#include <tvm/runtime/crt/error_codes.h>
#include <tvm/runtime/crt/func_registry.h>
#include <tvm/runtime/crt/module.h>
#include <tvm/runtime/crt/packed_func.h>

#include "require.h"

static int sum(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, void* resource) {
  (void)codes;
  (void)resource;
  ret->v_int64 = 0;
  for (int i = 0; i < num_args; ++i) ret->v_int64 += args[i].v_int64;
  *ret_code = kTVMArgInt;
  return 0;
}

static int refuse(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, void* resource) {
  (void)args;
  (void)codes;
  (void)num_args;
  (void)ret;
  (void)ret_code;
  (void)resource;
  TVMAPISetLastError("refused");
  return -1;
}

/* 258 functions: the count needs two bytes. */
enum { MANY = 258 };
static TVMBackendPackedCFunc many_functions[MANY];
static char many_names[2 + MANY * 5 + 1];
static const TVMFuncRegistry many_registry = {many_names, many_functions};
static const TVMModule many_module = {&many_registry};
static const TVMBackendPackedCFunc library_functions[] = {sum, refuse};
static const TVMFuncRegistry library_registry = {"\002\000sum\000refuse\000", library_functions};
static const TVMModule library = {&library_registry};

const TVMModule* TVMSystemLibEntryPoint(void) { return &library; }

static void check_registry(void) {
  char* at = many_names + 2;
  tvm_function_index_t index = 0;
  TVMBackendPackedCFunc function;
  many_names[0] = (char)(MANY & 0xff);
  many_names[1] = (char)(MANY >> 8);
  for (int i = 0; i < MANY; ++i) {
    at += sprintf(at, "f%03d", i) + 1;
    many_functions[i] = i == MANY - 1 ? refuse : sum;
  }
  REQUIRE(TVMFuncRegistry_GetNumFuncs(&many_registry) == MANY);
  REQUIRE(TVMFuncRegistry_Lookup(&many_registry, "f257", &index) == kTvmErrorNoError && index == 257);
  REQUIRE(TVMFuncRegistry_GetByIndex(&many_registry, 257, &function) == kTvmErrorNoError && function == refuse);
  REQUIRE(TVMFuncRegistry_GetByIndex(&many_registry, MANY, &function) == kTvmErrorFunctionIndexInvalid);
  REQUIRE(TVMFuncRegistry_Lookup(&many_registry, "f258", &index) == kTvmErrorFunctionNameNotFound);
  REQUIRE(strcmp(TVMGetLastError(), "there is no function f258") == 0);
}

static void check_mutable(void) {
  uint8_t buffer[TVM_CRT_FUNC_REGISTRY_SIZE_BYTES(3) + sizeof(void*)];
  TVMMutableFuncRegistry table;
  TVMBackendPackedCFunc function;
  REQUIRE(TVMMutableFuncRegistry_Create(&table, buffer, 4) == kTvmErrorBufferTooSmall);
  REQUIRE(TVMMutableFuncRegistry_Create(&table, buffer + 1, sizeof(buffer) - 1) == kTvmErrorNoError);
  REQUIRE(table.max_functions == 3 && TVMFuncRegistry_GetNumFuncs(&table.registry) == 0);
  REQUIRE(TVMMutableFuncRegistry_Set(&table, "a", sum, 0) == kTvmErrorNoError);
  REQUIRE(TVMMutableFuncRegistry_Set(&table, "a", refuse, 0) == kTvmErrorFunctionAlreadyDefined);
  REQUIRE(TVMMutableFuncRegistry_Set(&table, "a", refuse, 1) == kTvmErrorNoError);
  REQUIRE(TVMFuncRegistry_GetByIndex(&table.registry, 0, &function) == kTvmErrorNoError && function == refuse);
  REQUIRE(TVMMutableFuncRegistry_Set(&table, "a_name_of_32_bytes_is_too_much__", sum, 0) ==
          kTvmErrorFunctionRegistryFull);
  REQUIRE(TVMMutableFuncRegistry_Set(&table, "a_name_of_25_bytes_fits__", sum, 0) == kTvmErrorNoError);
  REQUIRE(TVMMutableFuncRegistry_Set(&table, "b", sum, 0) == kTvmErrorNoError);
  REQUIRE(TVMMutableFuncRegistry_Set(&table, "c", sum, 0) == kTvmErrorFunctionRegistryFull);
  REQUIRE(TVMFuncRegistry_GetNumFuncs(&table.registry) == 3);
}

static void check_handles(void) {
  TVMModuleHandle module;
  TVMModuleHandle second;
  TVMFunctionHandle function;
  TVMPackedFunc call;
  const TVMArgs none = TVMArgs_Create(NULL, NULL, 0);
  TVMValue args[2];
  TVMValue result;
  int codes[2] = {kTVMArgInt, kTVMArgInt};
  int code;
  args[0].v_int64 = 40;
  args[1].v_int64 = 2;
  REQUIRE(TVMFuncGetGlobal("runtime.SystemLib", &function) == 0);
  REQUIRE((uintptr_t)function == (((uintptr_t)0x8000 | TVM_CRT_MAX_REGISTERED_MODULES) << 16 | 0x8000));
  REQUIRE(TVMFuncCall(function, NULL, NULL, 0, &result, &code) == 0 && code == kTVMModuleHandle);
  module = result.v_handle;
  REQUIRE((uintptr_t)module == 0x8000);
  REQUIRE(TVMModGetFunction(module, "sum", 0, &function) == 0 && (uintptr_t)function == 0x80008000u);
  REQUIRE(TVMFuncCall(function, args, codes, 2, &result, &code) == 0 && code == kTVMArgInt && result.v_int64 == 42);
  REQUIRE(TVMModGetFunction(module, "refuse", 0, &function) == 0);
  REQUIRE(TVMFuncCall(function, args, codes, 2, &result, &code) == -1 && code == kTVMNullptr);
  REQUIRE(strcmp(TVMGetLastError(), "refused") == 0);
  REQUIRE(TVMPackedFunc_InitModuleFunc(&call, module, "refuse", &none) == 0);
  REQUIRE(TVMPackedFunc_Call(&call) == -1 && call.ret_value.values_count == 0);
  REQUIRE(TVMModGetFunction(module, "nothing", 0, &function) == kTvmErrorFunctionNameNotFound && function == NULL);
  REQUIRE(TVMModGetFunction(NULL, "sum", 0, &function) == kTvmErrorFunctionCallInvalidArg);
  REQUIRE(TVMFuncCall(NULL, args, codes, 2, &result, &code) == kTvmErrorFunctionCallInvalidArg);
  REQUIRE(TVMFuncCall((TVMFunctionHandle)(uintptr_t)0x80018000u, args, codes, 2, &result, &code) ==
          kTvmErrorFunctionCallInvalidArg);
  REQUIRE(TVMModCreateFromCModule(&many_module, &second) == 0 && (uintptr_t)second == 0x8001);
  REQUIRE(TVMModGetFunction(second, "f257", 0, &function) == 0 && (uintptr_t)function == 0x80018101u);
  for (int i = 2; i < TVM_CRT_MAX_REGISTERED_MODULES; ++i) {
    REQUIRE(TVMModCreateFromCModule(&many_module, &module) == 0);
  }
  REQUIRE(TVMModCreateFromCModule(&many_module, &module) == kTvmErrorFunctionRegistryFull && module == NULL);
  REQUIRE(TVMModFree(second) == 0 && TVMModFree(second) == kTvmErrorFunctionCallInvalidArg);
  REQUIRE(TVMModCreateFromCModule(&many_module, &second) == 0 && TVMModFree(second) == 0);
  REQUIRE(TVMBackendRegisterSystemLibSymbol("linked", (void*)(uintptr_t)sum) == 0);
  REQUIRE(TVMBackendGetFuncFromEnv((TVMModuleHandle)(uintptr_t)0x8000, "linked", &function) == 0);
  REQUIRE(TVMFuncCall(function, args, codes, 2, &result, &code) == 0 && result.v_int64 == 42);
}

static int count_tasks(int task, TVMParallelGroupEnv* env, void* data) {
  *(int*)data += 10 * task + env->num_task;
  return task == 3 ? -7 : 0;
}

static int once(void* data) {
  ++*(int*)data;
  return 0;
}

static void check_backend(void) {
  int total = 0;
  int calls = 0;
  void* handle = NULL;
  REQUIRE(TVMBackendParallelLaunch(count_tasks, &total, 0) == 0 && total == 1);
  REQUIRE(TVMBackendParallelLaunch(count_tasks, &total, 3) == 0 && total == 1 + 30 + 9);
  REQUIRE(TVMBackendParallelLaunch(count_tasks, &total, 9) == -7);
  REQUIRE(TVMBackendRunOnce(&handle, once, &calls, sizeof(calls)) == 0);
  REQUIRE(TVMBackendRunOnce(&handle, once, &calls, sizeof(calls)) == 0 && calls == 1);
  void* workspace = TVMBackendAllocWorkspace(kDLCPU, 0, 1000, kDLFloat, 32);
  REQUIRE(workspace != NULL);
  memset(workspace, 1, 1000);
  REQUIRE(TVMBackendFreeWorkspace(kDLCPU, 0, workspace) == 0);
}

static void check_arrays(void) {
  const int64_t shape[] = {2, 3};
  const int64_t large[] = {INT64_MAX, INT64_MAX};
  const int64_t negative[] = {-1};
  float values[6] = {1, 2, 3, 4, 5, 6};
  float back[6] = {0};
  TVMArrayHandle array;
  REQUIRE(TVMArrayAlloc(shape, 2, kDLFloat, 32, 1, kDLCPU, 0, &array) == 0 && array->shape[1] == 3);
  REQUIRE(TVMArrayCopyToBytes(array, back, sizeof(back)) == 0 && back[5] == 0);
  REQUIRE(TVMArrayCopyFromBytes(array, values, sizeof(values)) == 0);
  REQUIRE(TVMArrayCopyToBytes(array, back, sizeof(back)) == 0 && memcmp(values, back, sizeof(back)) == 0);
  REQUIRE(TVMArrayCopyToBytes(array, back, 20) == kTvmErrorDataTensorMismatch);
  REQUIRE(TVMArrayFree(array) == 0);
  REQUIRE(TVMArrayAlloc(large, 2, kDLFloat, 32, 1, kDLCPU, 0, &array) == kTvmErrorFunctionCallInvalidArg);
  REQUIRE(TVMArrayAlloc(negative, 1, kDLInt, 8, 1, kDLCPU, 0, &array) == kTvmErrorFunctionCallInvalidArg);
  REQUIRE(TVMArrayAlloc(shape, 99, kDLInt, 8, 1, kDLCPU, 0, &array) == kTvmErrorDataLimitExceeded && array == NULL);
}

static void check_error_text(void) {
  char text[3000];
  memset(text, 'x', sizeof(text));
  text[sizeof(text) - 1] = '\0';
  TVMAPISetLastError(text);
  const size_t length = strlen(TVMGetLastError());
  REQUIRE(length > 100 && length < sizeof(text) - 1 && strspn(TVMGetLastError(), "x") == length);
  TVMAPISetLastError(TVMGetLastError());
  REQUIRE(strlen(TVMGetLastError()) == length);
}

int main(void) {
  REQUIRE(TVMInitializeRuntime() == kTvmErrorNoError && TVMInitializeRuntime() == kTvmErrorNoError);
  check_registry();
  check_mutable();
  check_handles();
  check_backend();
  check_arrays();
  check_error_text();
  return 0;
}
