/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "load_params.h"

#include <string.h>

#include "../common/error_text.h"

/* Upper and lower halves of the two magic numbers. */
#define LIST_MAGIC (((uint64_t)0xF7E58D4F << 32) | 0x05049CB7)
#define ARRAY_MAGIC (((uint64_t)0xDD5E40F0 << 32) | 0x96B4A13F)

static void fail(ParamsReader* reader, const uint8_t* at, tvm_crt_error_t code, const char* what) {
  if (reader->error == kTvmErrorNoError) {
    reader->error = tvm_crt_fail(code, "parameters, byte %u: %s", (uint32_t)(at - reader->begin), what);
  }
}

static void refuse(ParamsReader* reader, const uint8_t* at, const char* what) {
  fail(reader, at, kTvmErrorDataParamsInvalid, what);
}

/* Returns the next bytes and skips them; NULL if the file is too short, and after an error. */
static const uint8_t* take(ParamsReader* reader, const uint8_t** at, uint64_t bytes) {
  const uint8_t* start = *at;
  if (reader->error != kTvmErrorNoError) return NULL;
  if (bytes > (uint64_t)(reader->end - start)) {
    refuse(reader, start, "the file ends too early");
    return NULL;
  }
  *at += (size_t)bytes;
  return start;
}

/* Reads a little-endian integer of `bytes` bytes, regardless of the machine's byte order. */
static uint64_t take_number(ParamsReader* reader, const uint8_t** at, uint32_t bytes) {
  const uint8_t* start = take(reader, at, bytes);
  uint64_t value = 0;
  if (start == NULL) return 0;
  for (uint32_t i = bytes; i-- > 0;) value = (value << 8) | start[i];
  return value;
}

ParamsReader params_reader(const char* blob, size_t size) {
  const uint8_t* begin = (const uint8_t*)blob;
  ParamsReader reader = {begin, begin + size, begin, begin, 0, kTvmErrorNoError};
  if (take_number(&reader, &reader.name, 8) != LIST_MAGIC) refuse(&reader, begin, "this is no parameter file");
  take_number(&reader, &reader.name, 8);
  const uint64_t count = take_number(&reader, &reader.name, 8);
  reader.array = reader.name;
  for (uint64_t i = 0; i < count && reader.error == kTvmErrorNoError; ++i) {
    take(&reader, &reader.array, take_number(&reader, &reader.array, 8));
  }
  const uint8_t* at = reader.array;
  if (take_number(&reader, &reader.array, 8) != count) refuse(&reader, at, "the numbers of names and arrays differ");
  reader.left = count;
  return reader;
}

static void read_name(ParamsReader* reader, Param* param) {
  const uint8_t* at = reader->name;
  const uint64_t length = take_number(reader, &reader->name, 8);
  const uint8_t* name = take(reader, &reader->name, length);
  if (length >= sizeof(param->name)) {
    fail(reader, at, kTvmErrorDataLimitExceeded, "a name is longer than TVM_CRT_MAX_STRLEN_PARAM_NAME allows");
  }
  if (reader->error != kTvmErrorNoError) return;
  memcpy(param->name, name, (size_t)length);
  param->name[length] = '\0';
  if (strlen(param->name) != length) refuse(reader, at, "a name contains a NUL");
}

/* Returns the product, or UINT64_MAX on overflow, which exceeds any file. */
static uint64_t multiply(uint64_t a, uint64_t b) { return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b; }

static void read_array(ParamsReader* reader, Param* param) {
  const uint8_t** at = &reader->array;
  const uint8_t* start = *at;
  if (take_number(reader, at, 8) != ARRAY_MAGIC) refuse(reader, start, "an array does not start with its mark");
  take_number(reader, at, 8);
  const uint64_t device_type = take_number(reader, at, 4);
  take_number(reader, at, 4);
  const uint64_t ndim = take_number(reader, at, 4);
  param->dtype.code = (uint8_t)take_number(reader, at, 1);
  param->dtype.bits = (uint8_t)take_number(reader, at, 1);
  param->dtype.lanes = (uint16_t)take_number(reader, at, 2);
  if (device_type != kDLCPU) refuse(reader, start, "an array is not of the CPU");
  if (ndim > TVM_CRT_MAX_NDIM) {
    fail(reader, start, kTvmErrorDataLimitExceeded, "an array has more dimensions than TVM_CRT_MAX_NDIM allows");
  }
  if (reader->error != kTvmErrorNoError) return;
  param->ndim = (int32_t)ndim;
  uint64_t expected = ((uint64_t)param->dtype.bits + 7) / 8;
  for (int32_t i = 0; i < param->ndim; ++i) {
    const uint64_t extent = take_number(reader, at, 8);
    if (extent > INT64_MAX) refuse(reader, start, "an extent is negative");
    param->shape[i] = (int64_t)extent;
    expected = multiply(expected, extent);
  }
  const uint64_t bytes = take_number(reader, at, 8);
  if (bytes != expected) refuse(reader, start, "an array's size does not follow from its shape and type");
  param->data = (const char*)take(reader, at, bytes);
  param->bytes = (size_t)bytes;
}

bool params_next(ParamsReader* reader, Param* param) {
  if (reader->error != kTvmErrorNoError || reader->left == 0) return false;
  --reader->left;
  read_name(reader, param);
  read_array(reader, param);
  return reader->error == kTvmErrorNoError;
}
