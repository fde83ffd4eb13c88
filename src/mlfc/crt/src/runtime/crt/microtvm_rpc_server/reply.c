/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "reply.h"

#include <string.h>

#include "rpc_code.h"

static tvm_crt_error_t put_number(TVMSession* session, uint64_t value, size_t num_bytes) {
  uint8_t bytes[sizeof(uint64_t)];
  for (size_t i = 0; i < num_bytes; ++i) bytes[i] = (uint8_t)(value >> 8 * i);
  return TVMSession_WriteBody(session, bytes, num_bytes);
}

static tvm_crt_error_t put_u32(TVMSession* session, uint32_t value) { return put_number(session, value, 4); }

static tvm_crt_error_t put_u64(TVMSession* session, uint64_t value) { return put_number(session, value, 8); }

/* Writes the header of every reply: the length of the rest, and the code. */
static tvm_crt_error_t start(TVMSession* session, uint32_t code, size_t num_bytes) {
  const size_t length = sizeof(code) + num_bytes;
  tvm_crt_error_t error = TVMSession_StartMessage(session, kTvmMessageNormal, sizeof(uint64_t) + length);
  if (error == kTvmErrorNoError) error = put_u64(session, length);
  return error != kTvmErrorNoError ? error : put_u32(session, code);
}

static size_t tensor_size(const DLTensor* tensor) { return 8 + 8 + 4 + 4 + 8 * (size_t)tensor->ndim + 8; }

static tvm_crt_error_t put_tensor(TVMSession* session, const DLTensor* tensor) {
  const DLDataType type = tensor->dtype;
  tvm_crt_error_t error = put_u64(session, (uintptr_t)tensor->data);
  if (error == kTvmErrorNoError) error = put_u32(session, (uint32_t)tensor->device.device_type);
  if (error == kTvmErrorNoError) error = put_u32(session, (uint32_t)tensor->device.device_id);
  if (error == kTvmErrorNoError) error = put_u32(session, (uint32_t)tensor->ndim);
  if (error == kTvmErrorNoError) {
    error = put_u32(session, type.code | (uint32_t)type.bits << 8 | (uint32_t)type.lanes << 16);
  }
  for (int32_t i = 0; error == kTvmErrorNoError && i < tensor->ndim; ++i) {
    error = put_u64(session, (uint64_t)tensor->shape[i]);
  }
  return error != kTvmErrorNoError ? error : put_u64(session, tensor->byte_offset);
}

static tvm_crt_error_t put_counted(TVMSession* session, const void* data, size_t num_bytes) {
  const tvm_crt_error_t error = put_u64(session, num_bytes);
  return error != kTvmErrorNoError ? error : TVMSession_WriteBody(session, (const uint8_t*)data, num_bytes);
}

static size_t value_size(TVMValue value, int code) {
  switch (code) {
    case kTVMNullptr: return 0;
    case kTVMDLTensorHandle: return tensor_size((const DLTensor*)value.v_handle);
    case kTVMStr: return sizeof(uint64_t) + strlen(value.v_str);
    case kTVMBytes: return sizeof(uint64_t) + ((const TVMByteArray*)value.v_handle)->size;
    default: return sizeof(uint64_t);
  }
}

static tvm_crt_error_t put_value(TVMSession* session, TVMValue value, int code) {
  switch (code) {
    case kTVMNullptr: return kTvmErrorNoError;
    case kTVMDLTensorHandle: return put_tensor(session, (const DLTensor*)value.v_handle);
    case kTVMStr: return put_counted(session, value.v_str, strlen(value.v_str));
    case kTVMBytes: {
      const TVMByteArray* bytes = (const TVMByteArray*)value.v_handle;
      return put_counted(session, bytes->data, bytes->size);
    }
    case kTVMOpaqueHandle:
    case kTVMModuleHandle:
    case kTVMPackedFuncHandle: return put_u64(session, (uintptr_t)value.v_handle);
    default: return put_u64(session, (uint64_t)value.v_int64);
  }
}

tvm_crt_error_t reply_values(TVMSession* session, uint32_t code, const TVMValue* values, const int* codes, int count) {
  size_t num_bytes = 4 + 4 * (size_t)count;
  for (int i = 0; i < count; ++i) num_bytes += value_size(values[i], codes[i]);
  tvm_crt_error_t error = start(session, code, num_bytes);
  if (error == kTvmErrorNoError) error = put_u32(session, (uint32_t)count);
  for (int i = 0; error == kTvmErrorNoError && i < count; ++i) error = put_u32(session, (uint32_t)codes[i]);
  for (int i = 0; error == kTvmErrorNoError && i < count; ++i) error = put_value(session, values[i], codes[i]);
  const tvm_crt_error_t last = TVMSession_FinishMessage(session);
  return error != kTvmErrorNoError ? error : last;
}

tvm_crt_error_t reply_nothing(TVMSession* session) {
  static const int code = kTVMNullptr;
  const TVMValue nothing = {0};
  return reply_values(session, kRpcReturn, &nothing, &code, 1);
}

tvm_crt_error_t reply_handle(TVMSession* session, void* handle) {
  static const int code = kTVMOpaqueHandle;
  TVMValue value;
  value.v_handle = handle;
  return reply_values(session, kRpcReturn, &value, &code, 1);
}

tvm_crt_error_t reply_result(TVMSession* session, TVMValue value, int code) {
  TVMValue values[3];
  int codes[3] = {kTVMArgInt, code, kTVMOpaqueHandle};
  values[0].v_int64 = code;
  values[1] = values[2] = value;
  switch (code) {
    case kTVMModuleHandle:
    case kTVMPackedFuncHandle: codes[1] = kTVMOpaqueHandle; return reply_values(session, kRpcReturn, values, codes, 2);
    /* An array: its description, and the handle to free it. */
    case kTVMNDArrayHandle: codes[1] = kTVMDLTensorHandle; return reply_values(session, kRpcReturn, values, codes, 3);
    case kTVMArgInt:
    case kTVMArgFloat:
    case kTVMOpaqueHandle:
    case kTVMNullptr:
    case kTVMStr:
    case kTVMBytes: return reply_values(session, kRpcReturn, values, codes, 2);
    default: return reply_exception(session, "the function returned a value of a type that cannot be sent");
  }
}

tvm_crt_error_t reply_exception(TVMSession* session, const char* text) {
  static const int code = kTVMStr;
  TVMValue value;
  value.v_str = text;
  return reply_values(session, kRpcException, &value, &code, 1);
}

tvm_crt_error_t reply_bytes(TVMSession* session, const void* data, size_t num_bytes) {
  tvm_crt_error_t error = start(session, kRpcCopyAck, num_bytes);
  if (error == kTvmErrorNoError && num_bytes > 0) {
    error = TVMSession_WriteBody(session, (const uint8_t*)data, num_bytes);
  }
  const tvm_crt_error_t last = TVMSession_FinishMessage(session);
  return error != kTvmErrorNoError ? error : last;
}
