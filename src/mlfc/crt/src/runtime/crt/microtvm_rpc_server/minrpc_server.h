/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Answers requests: one message of a session is one request */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_MINRPC_SERVER_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_MINRPC_SERVER_H_

#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/rpc_common/session.h>

/*!
 * \brief Handles one request and sends the reply.
 * \param session The session of the reply.
 * \param data The request, which is modified.
 * \param num_bytes Size of the request.
 * \return kTvmErrorPlatformShutdown if the host requests it; otherwise whether the reply could be written.
 */
tvm_crt_error_t minrpc_handle(TVMSession* session, uint8_t* data, size_t num_bytes);

/*! \brief Frees the resources of the last session: memory, modules and the time evaluator. */
void minrpc_end_session(void);

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_MINRPC_SERVER_H_ */
