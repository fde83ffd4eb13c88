/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Reads requests in place; never accesses memory outside of them, for any content */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REQUEST_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REQUEST_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_runtime_api.h>

#include "../common/config.h"

/*! \brief Most arguments of a call: runtime.RPCTimeEvaluator takes twelve. */
enum { REQUEST_MAX_ARGS = TVM_CRT_MAX_ARGS > 12 ? TVM_CRT_MAX_ARGS : 12 };

/*! \brief Storage for an argument that is not a plain value. */
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
 * \brief The unread bytes of a request.
 *
 * After the first fault, every function returns zeros, so callers check once, before they act.
 */
typedef struct {
  uint8_t* at;
  size_t left;
  /*! \brief Whether tensors among the arguments must have memory. */
  bool tensors_exist;
  /*! \brief The first fault of the request; NULL if none. */
  const char* fault;
} Request;

uint32_t request_u32(Request* request);
uint64_t request_u64(Request* request);

/*! \brief Reads an address or a handle. */
void* request_pointer(Request* request);

/*! \brief Reads a tensor, and its dimensions into `shape`. */
void request_tensor(Request* request, DLTensor* tensor, int64_t shape[TVM_CRT_MAX_NDIM]);

/*! \brief Reads packed arguments. Strings get their terminators in place, so the request is modified. */
void request_args(Request* request, RequestArgs* args);

/*! \brief Sets the fault unless the request ends here. */
void request_end(Request* request);

/*!
 * \brief Locates bytes for an access by a host.
 * \param base Any address.
 * \param offset Offset of the bytes from it.
 * \param num_bytes Number of bytes; zero bytes may be anywhere.
 * \param out Receives their address.
 * \return Whether the host may read them, and write them unless they are constant. Writes of operators to constants
 *         are not checked.
 */
bool request_memory(const void* base, uint64_t offset, size_t num_bytes, uint8_t** out);

/*! \brief Returns whether bytes are constants of the program. */
bool request_is_constant(const void* address, size_t num_bytes);

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_REQUEST_H_ */
