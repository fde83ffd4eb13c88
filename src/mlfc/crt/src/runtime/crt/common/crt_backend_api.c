/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* Only functions that generated code needs of the platform: linking this file does not add function tables. */
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/platform.h>

#include "context.h"
#include "error_text.h"

static DLDevice device_of(int device_type, int device_id) {
  DLDevice device = {(DLDeviceType)device_type, device_id};
  return device;
}

void* TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t nbytes, int dtype_code_hint,
                               int dtype_bits_hint) {
  void* result = NULL;
  TVM_CRT_FORWARD(__TVMBackendAllocWorkspace, (device_type, device_id, nbytes, dtype_code_hint, dtype_bits_hint));
  (void)dtype_code_hint;
  (void)dtype_bits_hint;
  if (nbytes > SIZE_MAX ||
      TVMPlatformMemoryAllocate((size_t)nbytes, device_of(device_type, device_id), &result) != kTvmErrorNoError) {
    tvm_crt_fail(kTvmErrorPlatformNoMemory, "no memory for a workspace of %u bytes", (uint32_t)nbytes);
    return NULL;
  }
  return result;
}

int TVMBackendFreeWorkspace(int device_type, int device_id, void* ptr) {
  TVM_CRT_FORWARD(__TVMBackendFreeWorkspace, (device_type, device_id, ptr));
  return TVMPlatformMemoryFree(ptr, device_of(device_type, device_id));
}

int TVMBackendParallelLaunch(FTVMParallelLambda flambda, void* cdata, int num_task) {
  TVM_CRT_FORWARD(__TVMBackendParallelLaunch, (flambda, cdata, num_task));
  TVMParallelGroupEnv env = {NULL, num_task > 0 ? num_task : 1};
  for (int32_t task = 0; task < env.num_task; ++task) {
    const int error = flambda(task, &env, cdata);
    if (error != 0) return error;
  }
  return 0;
}

int TVMBackendParallelBarrier(int task_id, TVMParallelGroupEnv* penv) {
  TVM_CRT_FORWARD(__TVMBackendParallelBarrier, (task_id, penv));
  (void)task_id;
  if (penv->num_task == 1) return 0;
  return tvm_crt_fail(kTvmErrorFunctionCallNotImplemented, "tasks that run one after the other cannot wait");
}

int TVMBackendRunOnce(void** handle, int (*f)(void*), void* cdata, int nbytes) {
  (void)nbytes;
  if (*handle != NULL) return 0;
  const int error = f(cdata);
  /* Any value other than NULL marks the call as done. */
  if (error == 0) *handle = (void*)(uintptr_t)1;
  return error;
}
