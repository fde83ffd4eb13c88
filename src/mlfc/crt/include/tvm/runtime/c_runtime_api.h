/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Packed functions, modules and arrays behind plain C functions */
#ifndef TVM_RUNTIME_C_RUNTIME_API_H_
#define TVM_RUNTIME_C_RUNTIME_API_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

/* Version that generated code and firmware check: the interfaces are those of TVM 0.14. */
#define TVM_VERSION "0.14.0"

#ifndef TVM_DLL
#if defined(_WIN32)
#define TVM_DLL __declspec(dllexport)
#elif defined(__GNUC__)
#define TVM_DLL __attribute__((visibility("default")))
#else
#define TVM_DLL
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int64_t tvm_index_t;

/*! \brief Device types in addition to those of dlpack.h. */
typedef enum {
  kDLAOCL = 32,
  kDLSDAccel = 33,
  kOpenGL = 34,
  kDLMicroDev = 35
} TVMDeviceExtType;

/*! \brief Type of the value in a TVMValue. */
typedef enum {
  kTVMArgInt = kDLInt,
  kTVMArgFloat = kDLFloat,
  kTVMOpaqueHandle = 3U,
  kTVMNullptr = 4U,
  kTVMDataType = 5U,
  kDLDevice = 6U,
  kTVMDLTensorHandle = 7U,
  kTVMObjectHandle = 8U,
  kTVMModuleHandle = 9U,
  kTVMPackedFuncHandle = 10U,
  kTVMStr = 11U,
  kTVMBytes = 12U,
  kTVMNDArrayHandle = 13U,
  kTVMObjectRValueRefArg = 14U,
  kTVMExtBegin = 15U,
  kTVMNNVMFirst = 16U,
  kTVMNNVMLast = 20U,
  kTVMExtReserveEnd = 64U,
  kTVMExtEnd = 128U
} TVMArgTypeCode;

typedef union {
  int64_t v_int64;
  double v_float64;
  void* v_handle;
  const char* v_str;
  DLDataType v_type;
  DLDevice v_device;
} TVMValue;

typedef struct {
  const char* data;
  size_t size;
} TVMByteArray;

typedef DLTensor* TVMArrayHandle;
typedef void* TVMModuleHandle;
typedef void* TVMFunctionHandle;
typedef void* TVMStreamHandle;

/*! \brief Points to a TVMRetValue. */
typedef void* TVMRetValueHandle;

/*! \brief Destination of the result of a TVMPackedCFunc. */
typedef struct {
  TVMValue* value;
  int* type_code;
} TVMRetValue;

/*! \brief Sets the text that TVMGetLastError returns; the text is copied and truncated to the configured length. */
TVM_DLL void TVMAPISetLastError(const char* msg);

/*! \brief Returns the text of the last error; empty if none occurred. */
TVM_DLL const char* TVMGetLastError(void);

/*!
 * \brief Finds a function of a module.
 * \param mod Handle of the module.
 * \param func_name Name of the function.
 * \param query_imports Ignored: modules of this runtime have no imports.
 * \param out The function's handle; NULL if not found.
 * \return 0, or an error code, also if the function is not found.
 */
TVM_DLL int TVMModGetFunction(TVMModuleHandle mod, const char* func_name, int query_imports, TVMFunctionHandle* out);

/*! \brief Frees the handle of a module; it may be reused for another one. */
TVM_DLL int TVMModFree(TVMModuleHandle mod);

/*! \brief Frees a function's handle; no effect, since handles do not own memory. */
TVM_DLL int TVMFuncFree(TVMFunctionHandle func);

/*!
 * \brief Calls a function by its handle.
 * \param func The handle.
 * \param arg_values Arguments, borrowed during the call.
 * \param type_codes Their TVMArgTypeCode.
 * \param num_args Number of arguments.
 * \param ret_val Receives the result.
 * \param ret_type_code Receives its TVMArgTypeCode; kTVMNullptr if the function returns nothing.
 * \return The function's return value: 0 on success.
 */
TVM_DLL int TVMFuncCall(TVMFunctionHandle func, TVMValue* arg_values, int* type_codes, int num_args,
                        TVMValue* ret_val, int* ret_type_code);

/*! \brief A function that returns its result by TVMCFuncSetReturn. */
typedef int (*TVMPackedCFunc)(TVMValue* args, int* type_codes, int num_args, TVMRetValueHandle ret,
                              void* resource_handle);

/*! \brief Sets the result of the running TVMPackedCFunc: exactly one value. */
TVM_DLL int TVMCFuncSetReturn(TVMRetValueHandle ret, TVMValue* value, int* type_code, int num_ret);

/*!
 * \brief Adds a function to the table of global functions.
 * \param name Its name, which is copied.
 * \param f A TVMBackendPackedCFunc, not a handle.
 * \param override Whether a function of this name may be replaced.
 */
TVM_DLL int TVMFuncRegisterGlobal(const char* name, TVMFunctionHandle f, int override);

/*! \brief Finds a global function. Fails, with a text that names the function, if it does not exist. */
TVM_DLL int TVMFuncGetGlobal(const char* name, TVMFunctionHandle* out);

/*! \brief Allocates an array of zeros through TVMPlatformMemoryAllocate. */
TVM_DLL int TVMArrayAlloc(const tvm_index_t* shape, int ndim, int dtype_code, int dtype_bits, int dtype_lanes,
                          int device_type, int device_id, TVMArrayHandle* out);

/*! \brief Frees an array of TVMArrayAlloc. */
TVM_DLL int TVMArrayFree(TVMArrayHandle handle);

/*! \brief Copies exactly the array's number of bytes into it. */
TVM_DLL int TVMArrayCopyFromBytes(TVMArrayHandle handle, void* data, size_t nbytes);

/*! \brief Copies exactly the array's number of bytes out of it. */
TVM_DLL int TVMArrayCopyToBytes(TVMArrayHandle handle, void* data, size_t nbytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_C_RUNTIME_API_H_ */
