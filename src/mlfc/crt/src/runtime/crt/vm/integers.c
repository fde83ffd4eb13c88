/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <string.h>

#include "machine.h"

static int multiply(int64_t a, int64_t b, int64_t* result) {
  if (a > 0 ? (b > 0 ? a > INT64_MAX / b : b < INT64_MIN / a)
            : (b > 0 ? a < INT64_MIN / b : a != 0 && b < INT64_MAX / a)) {
    return 0;
  }
  *result = a * b;
  return 1;
}

int32_t vm_compute(uint32_t operation, int64_t a, int64_t b, int64_t* result) {
  switch (operation) {
    case VM_ADD:
      if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) return MLFC_VM_OVERFLOW;
      *result = a + b;
      return MLFC_VM_OK;
    case VM_SUB:
      if (b > 0 ? a < INT64_MIN + b : a > INT64_MAX + b) return MLFC_VM_OVERFLOW;
      *result = a - b;
      return MLFC_VM_OK;
    case VM_MUL:
      return multiply(a, b, result) ? MLFC_VM_OK : MLFC_VM_OVERFLOW;
    case VM_FLOORDIV:
      if (b == 0) return MLFC_VM_DIVISION;
      if (b == -1 && a == INT64_MIN) return MLFC_VM_OVERFLOW;
      *result = a / b - (a % b != 0 && (a < 0) != (b < 0));
      return MLFC_VM_OK;
    case VM_FLOORMOD:
      if (b == 0) return MLFC_VM_DIVISION;
      *result = b == -1 ? 0 : a % b;
      if (*result != 0 && (a < 0) != (b < 0)) *result += b;
      return MLFC_VM_OK;
    case VM_MIN:
      *result = a < b ? a : b;
      return MLFC_VM_OK;
    case VM_MAX:
      *result = a > b ? a : b;
      return MLFC_VM_OK;
    case VM_EQ:
      *result = a == b;
      return MLFC_VM_OK;
    case VM_NE:
      *result = a != b;
      return MLFC_VM_OK;
    case VM_LT:
      *result = a < b;
      return MLFC_VM_OK;
    case VM_LE:
      *result = a <= b;
      return MLFC_VM_OK;
    case VM_AND:
      *result = a != 0 && b != 0;
      return MLFC_VM_OK;
    default: /* VM_OR */
      *result = a != 0 || b != 0;
      return MLFC_VM_OK;
  }
}

int vm_read_element(const uint8_t* at, uint8_t dtype, int64_t* value) {
  int16_t i16;
  int32_t i32;
  uint16_t u16;
  uint32_t u32;
  uint64_t u64;
  switch (dtype) {
    case VM_BOOL:
      *value = *at != 0;
      return 1;
    case VM_INT8:
      *value = *at < 0x80 ? (int64_t)*at : (int64_t)*at - 0x100;
      return 1;
    case VM_INT16:
      memcpy(&i16, at, sizeof(i16));
      *value = i16;
      return 1;
    case VM_INT32:
      memcpy(&i32, at, sizeof(i32));
      *value = i32;
      return 1;
    case VM_INT64:
      memcpy(value, at, sizeof(*value));
      return 1;
    case VM_UINT8:
      *value = *at;
      return 1;
    case VM_UINT16:
      memcpy(&u16, at, sizeof(u16));
      *value = u16;
      return 1;
    case VM_UINT32:
      memcpy(&u32, at, sizeof(u32));
      *value = u32;
      return 1;
    default: /* VM_UINT64 */
      memcpy(&u64, at, sizeof(u64));
      *value = u64 > INT64_MAX ? INT64_MAX : (int64_t)u64;
      return u64 <= INT64_MAX;
  }
}

int vm_write_element(uint8_t* at, uint8_t dtype, int64_t value) {
  static const int64_t lows[] = {0, -0x80, -0x7FFF - 1, -(int64_t)0x7FFFFFFF - 1, INT64_MIN, 0, 0, 0, 0};
  static const int64_t highs[] = {1, 0x7F, 0x7FFF, 0x7FFFFFFF, INT64_MAX, 0xFF, 0xFFFF, 0xFFFFFFFF, INT64_MAX};
  if (value < lows[dtype] || value > highs[dtype]) return 0;
  switch (mlfc_vm_dtype_bytes[dtype]) {
    case 1: {
      *at = (uint8_t)((uint64_t)value & 0xFF);
      return 1;
    }
    case 2: {
      const uint16_t bits = (uint16_t)((uint64_t)value & 0xFFFF);
      memcpy(at, &bits, sizeof(bits));
      return 1;
    }
    case 4: {
      const uint32_t bits = (uint32_t)((uint64_t)value & 0xFFFFFFFF);
      memcpy(at, &bits, sizeof(bits));
      return 1;
    }
    default:
      memcpy(at, &value, sizeof(value));
      return 1;
  }
}
