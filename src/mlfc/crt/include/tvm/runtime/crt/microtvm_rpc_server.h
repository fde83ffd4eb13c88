/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*!
 * \brief RPC server: a host calls functions and accesses memory of this device over any byte stream
 *
 * The peer on the line can call every function of the program's registry, and read and write all memory, unless
 * crt_config.h defines TVM_CRT_RPC_OWN_MEMORY_ONLY as 1. Then it can access only memory that it allocated itself.
 */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <tvm/runtime/crt/error_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Writes some bytes, blocking if necessary; returns the number written; at most 0 if the line is closed. */
typedef ssize_t (*microtvm_rpc_channel_write_t)(void* context, const uint8_t* data, size_t num_bytes);

typedef void* microtvm_rpc_server_t;

/*!
 * \brief Starts or restarts the program's only server, and the runtime.
 * \param write_func Writes to the line.
 * \param write_func_ctx Passed to write_func.
 * \return The server; NULL if the table of global functions is full, or the line is closed.
 */
microtvm_rpc_server_t MicroTVMRpcServerInit(microtvm_rpc_channel_write_t write_func, void* write_func_ctx);

/*!
 * \brief Handles received bytes; answers at most one packet.
 *
 * Damaged packets are skipped: the host repeats the request or gives up.
 *
 * \param server The server.
 * \param new_data The bytes; advanced past those handled.
 * \param new_data_size_bytes Number of remaining bytes.
 * \return kTvmErrorPlatformShutdown after a host requested it; another error if answers cannot be written.
 */
tvm_crt_error_t MicroTVMRpcServerLoop(microtvm_rpc_server_t server, uint8_t** new_data, size_t* new_data_size_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_H_ */
