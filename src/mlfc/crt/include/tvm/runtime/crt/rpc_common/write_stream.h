/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Where bytes for the other side of a line go */
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
  /*! \brief Writes some of the bytes, waiting for room; returns how many, 0 or less when the line is gone. */
  ssize_t (*write)(void* context, const uint8_t* data, size_t num_bytes);
  void* context;
} TVMWriteStream;

/*! \brief Writes all bytes, in as many calls as it takes. */
tvm_crt_error_t TVMWriteStream_WriteAll(const TVMWriteStream* stream, const uint8_t* data, size_t num_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_RPC_COMMON_WRITE_STREAM_H_ */
