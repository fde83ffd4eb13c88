/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Writes replies, whose length must be known before their first byte */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REPLY_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REPLY_H_

#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/rpc_common/session.h>

/*! \brief Sends values as packed arguments, by their type codes. */
tvm_crt_error_t reply_values(TVMSession* session, uint32_t code, const TVMValue* values, const int* codes, int count);

/*! \brief Sends the completion of a system call. */
tvm_crt_error_t reply_nothing(TVMSession* session);

/*! \brief Sends a handle or an address. */
tvm_crt_error_t reply_handle(TVMSession* session, void* handle);

/*! \brief Sends the result of a function, after its type. */
tvm_crt_error_t reply_result(TVMSession* session, TVMValue value, int code);

/*! \brief Sends the error of a failed request. */
tvm_crt_error_t reply_exception(TVMSession* session, const char* text);

/*! \brief Sends bytes of memory. */
tvm_crt_error_t reply_bytes(TVMSession* session, const void* data, size_t num_bytes);

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REPLY_H_ */
