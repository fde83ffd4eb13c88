/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*!
 * \brief Packets on a line that loses and invents bytes
 *
 * FF FD, four bytes of length, payload, two bytes of CRC; numbers are little-endian. Every FF of length, payload and
 * CRC is doubled; FF FE means nothing, anywhere. The CRC is CRC-16/CCITT-FALSE of the bytes as they are sent, from the
 * FF FD to the last one of the payload.
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

/*! \brief Bytes that a packet has beside its payload, escapes not counted. */
#define TVM_FRAMING_OVERHEAD_BYTES 8

/*! \brief Bytes that are collected before they go to the stream. */
#define TVM_FRAMER_BUFFER_BYTES 64

/*! \brief Continues a CRC-16/CCITT-FALSE, which starts as 0xFFFF. */
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

/*! \brief Makes a framer, whose first packet a byte goes before that ends any escape which the reader may wait for. */
void TVMFramer_Init(TVMFramer* framer, const TVMWriteStream* stream);

/*! \brief Starts a packet. Exactly so many bytes of payload must follow, in any number of calls. */
tvm_crt_error_t TVMFramer_StartPacket(TVMFramer* framer, size_t payload_bytes);

/*! \brief Writes a part of the payload. */
tvm_crt_error_t TVMFramer_WritePayload(TVMFramer* framer, const uint8_t* data, size_t num_bytes);

/*! \brief Ends the packet; an error if payload is missing. */
tvm_crt_error_t TVMFramer_FinishPacket(TVMFramer* framer);

/*! \brief Reads packets into memory of the caller. */
typedef struct TVMUnframer {
  uint8_t* payload;
  size_t capacity;
  /*! \brief Of the payload, once its packet is complete. */
  size_t length;
  uint8_t part;
  bool escaped;
  size_t done;
  uint32_t number;
  uint16_t crc;
} TVMUnframer;

/*! \brief Makes an unframer that writes payloads of up to `capacity` bytes to `payload`. */
void TVMUnframer_Init(TVMUnframer* unframer, uint8_t* payload, size_t capacity);

/*!
 * \brief Reads up to the end of a packet or of the data.
 *
 * What is no packet is passed over: bytes between packets, packets that are cut off, damaged, or too long.
 *
 * \param data Moves behind what was read.
 * \param num_bytes What is left of it.
 * \return Whether `payload` holds a packet's `length` bytes, until the next call.
 */
bool TVMUnframer_Read(TVMUnframer* unframer, const uint8_t** data, size_t* num_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_RPC_COMMON_FRAMING_H_ */
