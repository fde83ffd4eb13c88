/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Arguments and results of executor modules' functions */
#ifndef TVM_RUNTIME_CRT_COMMON_ARGUMENTS_H_
#define TVM_RUNTIME_CRT_COMMON_ARGUMENTS_H_

#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/error_codes.h>

/*! \brief Declares a function of a module: a static TVMBackendPackedCFunc. */
#define MODULE_FUNCTION(name)                                                             \
  static int name(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, \
                  void* resource_handle)

/*! \brief Marks the unused parameters of such a function. */
#define UNUSED_PARAMETERS \
  ((void)args, (void)codes, (void)num_args, (void)ret, (void)ret_code, (void)resource_handle)

/*!
 * \brief Checks the number and kinds of arguments.
 * \param function Name of the function, for the error text.
 * \param kinds A letter per argument: i integer, d device, s string, b bytes, m module, t tensor, k string or integer.
 */
tvm_crt_error_t tvm_crt_check_arguments(const char* function, const char* kinds, const int* type_codes, int num_args);

/*! \brief Sets an integer as the result; returns 0. */
int tvm_crt_return_int(TVMValue* ret, int* ret_code, int value);

/*! \brief Sets a tensor as the result; returns 0. */
int tvm_crt_return_tensor(TVMValue* ret, int* ret_code, DLTensor* tensor);

#endif /* TVM_RUNTIME_CRT_COMMON_ARGUMENTS_H_ */
