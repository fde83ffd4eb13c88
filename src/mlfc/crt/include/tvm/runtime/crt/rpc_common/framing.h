/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*!
 * \brief Packets on a line that may lose or insert bytes
 *
 * FF FD, four bytes of length, payload, two bytes of CRC; numbers are little-endian. Every FF of length, payload and
 * CRC is doubled; FF FE is ignored everywhere. The CRC is CRC-16/CCITT-FALSE of the bytes as sent, from the FF FD to
 * the last byte of the payload.
 */
#ifndef TVM_RUNTIME_CRT_RPC_COMMON_FRAMING_H_
#define TVM_RUNTIME_CRT_RPC_COMMON_FRAMING_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/error_codes.h>
#include <tvm/runtime/crt/rpc_common/write_stream.h>

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Bytes of a packet in addition to its payload, not counting escapes. */
#define TVM_FRAMING_OVERHEAD_BYTES 8

/*! \brief Bytes that are buffered before they are written to the stream. */
#define TVM_FRAMER_BUFFER_BYTES 64

/*! \brief Updates a CRC-16/CCITT-FALSE, whose initial value is 0xFFFF. */
uint16_t tvm_crc16(uint16_t crc, const uint8_t* data, size_t num_bytes);

/*! \brief Writes packets. */
typedef struct TVMFramer {
  TVMWriteStream stream;
  bool greeted;
  uint16_t crc;
  size_t payload_left;
  size_t buffered;
  uint8_t buffer[TVM_FRAMER_BUFFER_BYTES];
} TVMFramer;

/*! \brief Initializes a framer. A byte before its first packet ends any escape that the reader may expect. */
void TVMFramer_Init(TVMFramer* framer, const TVMWriteStream* stream);

/*! \brief Starts a packet. Exactly the given number of payload bytes must follow, in any number of calls. */
tvm_crt_error_t TVMFramer_StartPacket(TVMFramer* framer, size_t payload_bytes);

/*! \brief Writes a part of the payload. */
tvm_crt_error_t TVMFramer_WritePayload(TVMFramer* framer, const uint8_t* data, size_t num_bytes);

/*! \brief Ends the packet; an error if payload is missing. */
tvm_crt_error_t TVMFramer_FinishPacket(TVMFramer* framer);

/*! \brief Reads packets into memory of the caller. */
typedef struct TVMUnframer {
  uint8_t* payload;
  size_t capacity;
  /*! \brief Length of the payload, once its packet is complete. */
  size_t length;
  uint8_t part;
  bool escaped;
  size_t done;
  uint32_t number;
  uint16_t crc;
} TVMUnframer;

/*! \brief Initializes an unframer that writes payloads of up to `capacity` bytes to `payload`. */
void TVMUnframer_Init(TVMUnframer* unframer, uint8_t* payload, size_t capacity);

/*!
 * \brief Reads up to the end of a packet or of the data.
 *
 * Skips everything else: bytes between packets, and packets that are truncated, damaged or too long.
 *
 * \param data Advanced past the bytes read.
 * \param num_bytes Number of remaining bytes.
 * \return Whether `payload` contains a packet's `length` bytes, which are valid until the next call.
 */
bool TVMUnframer_Read(TVMUnframer* unframer, const uint8_t** data, size_t* num_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_RPC_COMMON_FRAMING_H_ */
