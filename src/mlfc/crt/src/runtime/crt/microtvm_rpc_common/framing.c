/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <tvm/runtime/crt/rpc_common/framing.h>

enum { ESCAPE = 0xFF, START = 0xFD, NOTHING = 0xFE };
enum { LENGTH_BYTES = 4, CRC_BYTES = 2, CRC_START = 0xFFFF };

uint16_t tvm_crc16(uint16_t crc, const uint8_t* data, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; ++i) {
    crc = (uint16_t)((crc >> 8 | crc << 8) ^ data[i]);
    crc = (uint16_t)(crc ^ (crc & 0xFF) >> 4);
    crc = (uint16_t)(crc ^ crc << 12);
    crc = (uint16_t)(crc ^ (crc & 0xFF) << 5);
  }
  return crc;
}

void TVMFramer_Init(TVMFramer* framer, const TVMWriteStream* stream) {
  framer->stream = *stream;
  framer->greeted = false;
  framer->payload_left = 0;
  framer->buffered = 0;
}

static tvm_crt_error_t flush(TVMFramer* framer) {
  const size_t count = framer->buffered;
  framer->buffered = 0;
  return TVMWriteStream_WriteAll(&framer->stream, framer->buffer, count);
}

static tvm_crt_error_t put(TVMFramer* framer, uint8_t byte) {
  framer->crc = tvm_crc16(framer->crc, &byte, 1);
  framer->buffer[framer->buffered++] = byte;
  return framer->buffered == TVM_FRAMER_BUFFER_BYTES ? flush(framer) : kTvmErrorNoError;
}

static tvm_crt_error_t put_escaped(TVMFramer* framer, const uint8_t* data, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; ++i) {
    tvm_crt_error_t error = put(framer, data[i]);
    if (error == kTvmErrorNoError && data[i] == ESCAPE) error = put(framer, ESCAPE);
    if (error != kTvmErrorNoError) return error;
  }
  return kTvmErrorNoError;
}

static tvm_crt_error_t put_number(TVMFramer* framer, uint32_t value, size_t num_bytes) {
  uint8_t bytes[LENGTH_BYTES];
  for (size_t i = 0; i < num_bytes; ++i) bytes[i] = (uint8_t)(value >> 8 * i);
  return put_escaped(framer, bytes, num_bytes);
}

tvm_crt_error_t TVMFramer_StartPacket(TVMFramer* framer, size_t payload_bytes) {
  if (payload_bytes > INT32_MAX) return kTvmErrorFramingPayloadOverflow;
  framer->buffered = 0;
  if (!framer->greeted) framer->buffer[framer->buffered++] = NOTHING;
  framer->greeted = true;
  framer->crc = CRC_START;
  framer->payload_left = payload_bytes;
  put(framer, ESCAPE);
  put(framer, START);
  return put_number(framer, (uint32_t)payload_bytes, LENGTH_BYTES);
}

tvm_crt_error_t TVMFramer_WritePayload(TVMFramer* framer, const uint8_t* data, size_t num_bytes) {
  if (num_bytes > framer->payload_left) return kTvmErrorFramingPayloadOverflow;
  framer->payload_left -= num_bytes;
  return put_escaped(framer, data, num_bytes);
}

tvm_crt_error_t TVMFramer_FinishPacket(TVMFramer* framer) {
  if (framer->payload_left != 0) return kTvmErrorFramingPayloadIncomplete;
  const tvm_crt_error_t error = put_number(framer, framer->crc, CRC_BYTES);
  return error != kTvmErrorNoError ? error : flush(framer);
}

/* The expected part of a packet. */
enum { IN_NOISE, IN_LENGTH, IN_PAYLOAD, IN_CRC };

void TVMUnframer_Init(TVMUnframer* unframer, uint8_t* payload, size_t capacity) {
  unframer->payload = payload;
  unframer->capacity = capacity;
  unframer->length = 0;
  unframer->part = IN_NOISE;
  unframer->escaped = false;
  unframer->done = 0;
  unframer->number = 0;
  unframer->crc = CRC_START;
}

static void enter(TVMUnframer* unframer, uint8_t part) {
  unframer->part = part;
  unframer->done = 0;
  unframer->number = 0;
}

static void start_packet(TVMUnframer* unframer) {
  static const uint8_t start[] = {ESCAPE, START};
  unframer->crc = tvm_crc16(CRC_START, start, sizeof(start));
  enter(unframer, IN_LENGTH);
}

/* Adds a byte to the number being read; returns whether it is complete. */
static bool add_to_number(TVMUnframer* unframer, uint8_t byte, size_t num_bytes) {
  unframer->number |= (uint32_t)byte << 8 * unframer->done;
  return ++unframer->done == num_bytes;
}

/* Handles an unescaped byte of a packet; returns whether it completes a valid packet. */
static bool take(TVMUnframer* unframer, uint8_t byte) {
  switch (unframer->part) {
    case IN_LENGTH:
      if (add_to_number(unframer, byte, LENGTH_BYTES)) {
        unframer->length = unframer->number;
        enter(unframer, unframer->number > unframer->capacity ? IN_NOISE : unframer->number > 0 ? IN_PAYLOAD : IN_CRC);
      }
      return false;
    case IN_PAYLOAD:
      unframer->payload[unframer->done++] = byte;
      if (unframer->done == unframer->length) enter(unframer, IN_CRC);
      return false;
    case IN_CRC:
      if (!add_to_number(unframer, byte, CRC_BYTES)) return false;
      unframer->part = IN_NOISE;
      return unframer->number == unframer->crc;
    default: return false;
  }
}

bool TVMUnframer_Read(TVMUnframer* unframer, const uint8_t** data, size_t* num_bytes) {
  while (*num_bytes > 0) {
    const uint8_t byte = *(*data)++;
    const bool escaped = unframer->escaped;
    --*num_bytes;
    unframer->escaped = !escaped && byte == ESCAPE;
    if (escaped && byte == START) {
      start_packet(unframer);
      continue;
    }
    if (unframer->part == IN_LENGTH || unframer->part == IN_PAYLOAD) {
      unframer->crc = tvm_crc16(unframer->crc, &byte, 1);
    }
    if (unframer->escaped || (escaped && byte == NOTHING)) continue;
    if (escaped && byte != ESCAPE) {
      unframer->part = IN_NOISE;
    } else if (take(unframer, byte)) {
      return true;
    }
  }
  return false;
}
