/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <tvm/runtime/crt/rpc_common/write_stream.h>

tvm_crt_error_t TVMWriteStream_WriteAll(const TVMWriteStream* stream, const uint8_t* data, size_t num_bytes) {
  while (num_bytes > 0) {
    const ssize_t written = stream->write(stream->context, data, num_bytes);
    if (written <= 0) return kTvmErrorWriteStreamShortWrite;
    if ((size_t)written > num_bytes) return kTvmErrorWriteStreamLongWrite;
    data += written;
    num_bytes -= (size_t)written;
  }
  return kTvmErrorNoError;
}
