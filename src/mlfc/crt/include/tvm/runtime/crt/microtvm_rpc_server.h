/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*!
 * \brief Lets a host call functions and use memory of this device, over any line that carries bytes
 *
 * Whoever holds the other end of the line may call every function of the program's registry, and read and write memory:
 * all of it, unless crt_config.h defines TVM_CRT_RPC_OWN_MEMORY_ONLY as 1. Then it is what the host allocated itself.
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

/*! \brief Writes some of the bytes, waiting for room; returns how many, 0 or less when the line is gone. */
typedef ssize_t (*microtvm_rpc_channel_write_t)(void* context, const uint8_t* data, size_t num_bytes);

typedef void* microtvm_rpc_server_t;

/*!
 * \brief Starts the one server of this program, or starts it again, and the runtime with it.
 * \param write_func Writes to the line.
 * \param write_func_ctx Handed to it.
 * \return The server; NULL when the table of global functions has no room, or the line is gone.
 */
microtvm_rpc_server_t MicroTVMRpcServerInit(microtvm_rpc_channel_write_t write_func, void* write_func_ctx);

/*!
 * \brief Handles bytes that came in: at most one packet is answered.
 *
 * Damaged packets are passed over: the host asks again, or gives up.
 *
 * \param server The server.
 * \param new_data Where they are; moves behind what was handled.
 * \param new_data_size_bytes How many are left.
 * \return kTvmErrorPlatformShutdown once a host asked for the end; another error when answers cannot be written.
 */
tvm_crt_error_t MicroTVMRpcServerLoop(microtvm_rpc_server_t server, uint8_t** new_data, size_t* new_data_size_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_H_ */
