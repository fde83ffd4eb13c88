/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The function that runtime.RPCTimeEvaluator makes: it runs another one, and returns how long that took */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_TIME_EVALUATOR_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_TIME_EVALUATOR_H_

#include <stdbool.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/error_codes.h>

/*!
 * \brief Makes the evaluator, in place of the one before it, of the arguments of runtime.RPCTimeEvaluator.
 *
 * These are module, name, device type and id, number, repeat, min_repeat_ms, then integers, as many as the host's
 * version has, and a string. Of them, the one behind min_repeat_ms counts where there are eleven arguments or more: how
 * often the clock may say that no time went by. Cooling down, flushing caches and calling something before is not for
 * devices of this kind.
 */
int time_evaluator_create(TVMValue* args, int* type_codes, int num_args, TVMValue* ret, int* ret_code,
                          void* resource_handle);

/*! \brief Returns whether a handle is that of an evaluator, be it one of the past. */
bool time_evaluator_is(TVMFunctionHandle handle);

/*! \brief Calls the function so often, and returns a float64 of seconds a repetition, as bytes that it keeps. */
int time_evaluator_call(TVMFunctionHandle handle, TVMValue* args, int* type_codes, int num_args, TVMValue* ret,
                        int* ret_code);

/*! \brief Lets go of the evaluator and its memory. */
void time_evaluator_release(void);

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_TIME_EVALUATOR_H_ */
