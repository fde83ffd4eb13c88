/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Reads requests where they stand; whatever the bytes are, nothing outside of them is touched */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REQUEST_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REQUEST_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_runtime_api.h>

#include "../common/config.h"

/*! \brief Most arguments of a call: runtime.RPCTimeEvaluator takes twelve. */
enum { REQUEST_MAX_ARGS = TVM_CRT_MAX_ARGS > 12 ? TVM_CRT_MAX_ARGS : 12 };

/*! \brief What an argument that is not a plain value points to. */
typedef union {
  DLTensor tensor;
  TVMByteArray bytes;
} RequestObject;

typedef struct {
  TVMValue values[REQUEST_MAX_ARGS];
  int codes[REQUEST_MAX_ARGS];
  int count;
  RequestObject objects[REQUEST_MAX_ARGS];
  int64_t shapes[REQUEST_MAX_ARGS][TVM_CRT_MAX_NDIM];
} RequestArgs;

/*!
 * \brief The bytes of a request that are still to be read.
 *
 * After the first fault, every function returns zeros: callers look once, before they act.
 */
typedef struct {
  uint8_t* at;
  size_t left;
  /*! \brief Whether the memory of tensors among arguments must be there. */
  bool tensors_exist;
  /*! \brief What is wrong with the request; NULL while nothing is. */
  const char* fault;
} Request;

uint32_t request_u32(Request* request);
uint64_t request_u64(Request* request);

/*! \brief Reads an address or a handle. */
void* request_pointer(Request* request);

/*! \brief Reads a tensor, whose extents go to `shape`. */
void request_tensor(Request* request, DLTensor* tensor, int64_t shape[TVM_CRT_MAX_NDIM]);

/*! \brief Reads packed arguments. Strings get their terminators in place, so the request is changed. */
void request_args(Request* request, RequestArgs* args);

/*! \brief Sets the fault unless the request ends here. */
void request_end(Request* request);

/*!
 * \brief Finds bytes that a host wants to use.
 * \param base Any address.
 * \param offset Where they start from there.
 * \param num_bytes How many; none may be anywhere.
 * \param out Where they are.
 * \return Whether the host may use them: read them, and write them unless they are constant. An operator that writes
 *         to constants is stopped by the machine alone.
 */
bool request_memory(const void* base, uint64_t offset, size_t num_bytes, uint8_t** out);

/*! \brief Returns whether bytes are constants of the program. */
bool request_is_constant(const void* address, size_t num_bytes);

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REQUEST_H_ */
