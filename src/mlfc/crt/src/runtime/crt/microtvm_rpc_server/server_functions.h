/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Global functions that hosts require */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_SERVER_FUNCTIONS_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_SERVER_FUNCTIONS_H_

#include <tvm/runtime/crt/error_codes.h>

/*! \brief Adds them to the table of global functions, once. */
tvm_crt_error_t server_functions_register(void);

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_SERVER_FUNCTIONS_H_ */
