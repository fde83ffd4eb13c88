/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Functions that generated code calls */
#ifndef TVM_RUNTIME_C_BACKEND_API_H_
#define TVM_RUNTIME_C_BACKEND_API_H_

#include <tvm/runtime/c_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Type of a generated function; it returns 0 on success. */
typedef int (*TVMBackendPackedCFunc)(TVMValue* args, int* type_codes, int num_args, TVMValue* out_ret_value,
                                     int* out_ret_tcode, void* resource_handle);

/*! \brief Finds a function of a module, else a global one. With a NULL module, only global ones are searched. */
TVM_DLL int TVMBackendGetFuncFromEnv(void* mod_node, const char* func_name, TVMFunctionHandle* out);

/*!
 * \brief Adds a symbol to the system library of programs without TVMSystemLibEntryPoint.
 * \param name Its name, which is not copied.
 * \param ptr A TVMBackendPackedCFunc.
 */
TVM_DLL int TVMBackendRegisterSystemLibSymbol(const char* name, void* ptr);

/*!
 * \brief Allocates temporary memory, to be freed in reverse order.
 * \return The memory, or NULL.
 */
TVM_DLL void* TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t nbytes, int dtype_code_hint,
                                       int dtype_bits_hint);

/*! \brief Frees memory of TVMBackendAllocWorkspace; 0 on success. */
TVM_DLL int TVMBackendFreeWorkspace(int device_type, int device_id, void* ptr);

typedef struct {
  void* sync_handle;
  int32_t num_task;
} TVMParallelGroupEnv;

typedef int (*FTVMParallelLambda)(int task_id, TVMParallelGroupEnv* penv, void* cdata);

/*!
 * \brief Runs the tasks of a parallel loop sequentially on the caller's thread.
 * \param flambda Called with 0, 1, ... until one fails.
 * \param cdata Passed to each call.
 * \param num_task Number of tasks; 0 lets the runtime choose, which is one.
 */
TVM_DLL int TVMBackendParallelLaunch(FTVMParallelLambda flambda, void* cdata, int num_task);

/*! \brief Waits for the other tasks. Fails for more than one task, since sequential tasks cannot wait. */
TVM_DLL int TVMBackendParallelBarrier(int task_id, TVMParallelGroupEnv* penv);

/*!
 * \brief Runs an initialization once.
 * \param handle NULL before the first call.
 * \param f Called only in the first call; if it fails, the handle is not changed.
 * \param cdata Passed to f.
 * \param nbytes Size of what cdata points to.
 */
TVM_DLL int TVMBackendRunOnce(void** handle, int (*f)(void*), void* cdata, int nbytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_C_BACKEND_API_H_ */
