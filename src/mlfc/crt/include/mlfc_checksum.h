/* A checksum of tensors that any machine can compute. This code is yours to use as you like.
 * SPDX-License-Identifier: 0BSD */
#ifndef MLFC_CHECKSUM_H_
#define MLFC_CHECKSUM_H_
#include <stddef.h>
#include <stdint.h>

/* Returns the CRC-32 of a buffer, as in zlib, Ethernet and gzip: that of "123456789" is 0xcbf43926.
 * Processes four bits per step: the table takes 64 bytes of flash, the usual one a kilobyte. */
static uint32_t mlfc_checksum(const void *data, size_t nbytes) {
  static const uint32_t table[16] = {
      UINT32_C(0x00000000), UINT32_C(0x1db71064), UINT32_C(0x3b6e20c8), UINT32_C(0x26d930ac),
      UINT32_C(0x76dc4190), UINT32_C(0x6b6b51f4), UINT32_C(0x4db26158), UINT32_C(0x5005713c),
      UINT32_C(0xedb88320), UINT32_C(0xf00f9344), UINT32_C(0xd6d6a3e8), UINT32_C(0xcb61b38c),
      UINT32_C(0x9b64c2b0), UINT32_C(0x86d3d2d4), UINT32_C(0xa00ae278), UINT32_C(0xbdbdf21c),
  };
  const uint8_t *byte = (const uint8_t *)data;
  uint32_t sum = UINT32_C(0xffffffff);
  size_t index;
  for (index = 0; index < nbytes; ++index) {
    sum ^= byte[index];
    sum = (sum >> 4) ^ table[sum & 15];
    sum = (sum >> 4) ^ table[sum & 15];
  }
  return ~sum;
}

#endif /* MLFC_CHECKSUM_H_ */
