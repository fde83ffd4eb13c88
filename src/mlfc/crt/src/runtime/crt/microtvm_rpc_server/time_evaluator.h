/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The function that runtime.RPCTimeEvaluator returns: it measures the run time of another function */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_TIME_EVALUATOR_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_TIME_EVALUATOR_H_

#include <stdbool.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/error_codes.h>

/*!
 * \brief Creates the evaluator from the arguments of runtime.RPCTimeEvaluator, and replaces the previous one.
 *
 * These are module, name, device type and id, number, repeat, min_repeat_ms, then integers, whose number depends on the
 * host's version, and a string. With eleven arguments or more, the integer after min_repeat_ms is used: the largest
 * number of measurements of zero time. Cooling down, flushing caches and calling a function before are not supported.
 */
int time_evaluator_create(TVMValue* args, int* type_codes, int num_args, TVMValue* ret, int* ret_code,
                          void* resource_handle);

/*! \brief Returns whether a handle is that of an evaluator, including replaced ones. */
bool time_evaluator_is(TVMFunctionHandle handle);

/*! \brief Calls the function, and returns the seconds of each repetition as float64, in the evaluator's memory. */
int time_evaluator_call(TVMFunctionHandle handle, TVMValue* args, int* type_codes, int num_args, TVMValue* ret,
                        int* ret_code);

/*! \brief Frees the evaluator and its memory. */
void time_evaluator_release(void);

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_TIME_EVALUATOR_H_ */
