/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "time_evaluator.h"

#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/platform.h>

#include "../common/error_text.h"
#include "../common/handles.h"

/*
 * Handles of evaluators have the form of function handles, with a module index that no program uses. Each has a unique
 * number, so that the handle of a replaced evaluator is detected.
 */
enum { MODULE_PART = 0xFFFF, VALID = 0x8000, NUMBERS = 0x7FFF };
enum { FEWEST_ARGS = 8, ARGS_WITH_ZERO_LIMIT = 11, ZERO_LIMIT = 100, ZERO_DOUBLINGS = 12, MAX_REPEAT = 4096 };

static const DLDevice cpu = {kDLCPU, 0};

static struct {
  bool exists;
  uint16_t number;
  TVMFunctionHandle function;
  int64_t calls;
  int64_t repeat;
  int64_t zero_limit;
  double min_seconds;
  double* seconds;
  TVMByteArray result;
} evaluator;

static TVMFunctionHandle own_handle(void) {
  return (TVMFunctionHandle)((uintptr_t)MODULE_PART << 16 | VALID | evaluator.number);
}

bool time_evaluator_is(TVMFunctionHandle handle) { return (uintptr_t)handle >> 16 == MODULE_PART; }

void time_evaluator_release(void) {
  if (evaluator.seconds != NULL) TVMPlatformMemoryFree(evaluator.seconds, cpu);
  evaluator.seconds = NULL;
  evaluator.exists = false;
}

static tvm_crt_error_t check(const TVMValue* args, const int* type_codes, int num_args) {
  if (num_args < FEWEST_ARGS) {
    return tvm_crt_fail(kTvmErrorFunctionCallNumArguments, "runtime.RPCTimeEvaluator takes at least %u arguments",
                        (uint32_t)FEWEST_ARGS);
  }
  for (int i = 0; i < num_args; ++i) {
    const bool is_text = i == 1 || i == num_args - 1;
    const bool fits = i == 0 ? type_codes[i] == kTVMModuleHandle || type_codes[i] == kTVMNullptr
                             : type_codes[i] == (is_text ? (int)kTVMStr : (int)kTVMArgInt);
    if (!fits) {
      return tvm_crt_fail(kTvmErrorFunctionCallWrongArgType, "argument %u of runtime.RPCTimeEvaluator has type code %u",
                          (uint32_t)i, (uint32_t)type_codes[i]);
    }
  }
  if (args[4].v_int64 < 1 || args[4].v_int64 > INT32_MAX || args[5].v_int64 < 1 || args[5].v_int64 > MAX_REPEAT ||
      args[6].v_int64 < 0 || args[6].v_int64 > INT32_MAX) {
    return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "number, repeat or min_repeat_ms is out of range");
  }
  return kTvmErrorNoError;
}

int time_evaluator_create(TVMValue* args, int* type_codes, int num_args, TVMValue* ret, int* ret_code,
                          void* resource_handle) {
  TVMFunctionHandle function;
  void* memory = NULL;
  (void)resource_handle;
  const tvm_crt_error_t error = check(args, type_codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const int status = type_codes[0] == kTVMNullptr ? TVMFuncGetGlobal(args[1].v_str, &function)
                                                  : TVMModGetFunction(args[0].v_handle, args[1].v_str, 0, &function);
  if (status != 0) return status;
  time_evaluator_release();
  const size_t num_bytes = (size_t)args[5].v_int64 * sizeof(double);
  if (TVMPlatformMemoryAllocate(num_bytes, cpu, &memory) != kTvmErrorNoError || memory == NULL) {
    return tvm_crt_fail(kTvmErrorPlatformNoMemory, "no memory for %u bytes", (uint32_t)num_bytes);
  }
  evaluator.exists = true;
  evaluator.number = (uint16_t)(evaluator.number % NUMBERS + 1);
  evaluator.function = function;
  evaluator.calls = args[4].v_int64;
  evaluator.repeat = args[5].v_int64;
  evaluator.zero_limit = num_args < ARGS_WITH_ZERO_LIMIT ? ZERO_LIMIT : args[7].v_int64;
  evaluator.min_seconds = (double)args[6].v_int64 / 1000;
  evaluator.seconds = (double*)memory;
  evaluator.result.data = (const char*)memory;
  evaluator.result.size = num_bytes;
  ret->v_handle = own_handle();
  *ret_code = kTVMPackedFuncHandle;
  return 0;
}

static int timed_calls(int64_t calls, TVMValue* args, int* type_codes, int num_args, double* seconds) {
  const ModuleSnapshot before = tvm_crt_modules_taken();
  TVMValue value;
  int code;
  int status = TVMPlatformBeforeMeasurement();
  if (status == 0) status = TVMPlatformTimerStart();
  if (status != 0) return tvm_crt_fail((tvm_crt_error_t)status, "the platform's timer does not start");
  for (int64_t i = 0; status == 0 && i < calls; ++i) {
    status = TVMFuncCall(evaluator.function, args, type_codes, num_args, &value, &code);
    /* Handles of objects created by the call, such as executors, are lost, so the objects are freed. */
    if (status == 0 && code == kTVMModuleHandle) tvm_crt_modules_free_since(&before);
  }
  const tvm_crt_error_t stopped = TVMPlatformTimerStop(seconds);
  const tvm_crt_error_t after = TVMPlatformAfterMeasurement();
  if (status != 0) return status;
  if (stopped == kTvmErrorNoError && after == kTvmErrorNoError) return 0;
  return tvm_crt_fail(kTvmErrorPlatformTimerBadState, "the platform's timer does not stop");
}

int time_evaluator_call(TVMFunctionHandle handle, TVMValue* args, int* type_codes, int num_args, TVMValue* ret,
                        int* ret_code) {
  if (!evaluator.exists || handle != own_handle()) {
    return tvm_crt_fail(kTvmErrorTimeEvaluatorBadHandle, "this time evaluator was replaced by another one");
  }
  int64_t calls = evaluator.calls;
  for (int64_t i = 0; i < evaluator.repeat; ++i) {
    double seconds = 0;
    int64_t zeros = 0;
    for (;;) {
      const int status = timed_calls(calls, args, type_codes, num_args, &seconds);
      if (status != 0) return status;
      /* A coarse clock needs more calls; with a stopped clock, waiting is pointless. */
      zeros += seconds <= 0;
      if (seconds >= evaluator.min_seconds || zeros >= evaluator.zero_limit || calls > INT32_MAX / 2) break;
      if (seconds > 0 || zeros < ZERO_DOUBLINGS) calls *= 2;
    }
    evaluator.seconds[i] = seconds / (double)calls;
  }
  ret->v_handle = &evaluator.result;
  *ret_code = kTVMBytes;
  return 0;
}
