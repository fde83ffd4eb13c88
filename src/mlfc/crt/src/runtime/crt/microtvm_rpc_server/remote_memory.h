/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Memory allocated by the host, freed by it or at the end of its session */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REMOTE_MEMORY_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REMOTE_MEMORY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/crt/error_codes.h>

/*! \brief Allocates memory; `alignment` is a power of two up to 4096. */
tvm_crt_error_t remote_memory_allocate(DLDevice device, uint64_t num_bytes, uint64_t alignment, void** out);

/*! \brief Frees memory; fails for an address that was not allocated here or is already free. */
tvm_crt_error_t remote_memory_free(void* address);

/*! \brief Returns whether bytes lie in one block that was allocated here. */
bool remote_memory_holds(const void* address, size_t num_bytes);

/*! \brief Frees all remaining blocks. */
void remote_memory_free_all(void);

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REMOTE_MEMORY_H_ */
