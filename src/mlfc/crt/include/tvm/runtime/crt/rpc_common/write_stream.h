/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Output stream for the other side of a line */
#ifndef TVM_RUNTIME_CRT_RPC_COMMON_WRITE_STREAM_H_
#define TVM_RUNTIME_CRT_RPC_COMMON_WRITE_STREAM_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <tvm/runtime/crt/error_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TVMWriteStream {
  /*! \brief Writes some bytes, blocking if necessary; returns the number written; at most 0 if the line is closed. */
  ssize_t (*write)(void* context, const uint8_t* data, size_t num_bytes);
  void* context;
} TVMWriteStream;

/*! \brief Writes all bytes, in as many calls as necessary. */
tvm_crt_error_t TVMWriteStream_WriteAll(const TVMWriteStream* stream, const uint8_t* data, size_t num_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_RPC_COMMON_WRITE_STREAM_H_ */
