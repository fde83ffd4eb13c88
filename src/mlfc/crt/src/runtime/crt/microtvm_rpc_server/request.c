/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "request.h"

#include <string.h>

#include "../common/handles.h"
#include "../common/tensor.h"
#include "remote_memory.h"

static const char cut_off[] = "the request is cut off";

static void fail(Request* request, const char* fault) {
  if (request->fault == NULL) request->fault = fault;
  request->left = 0;
}

/* Skips bytes and returns their start; NULL if fewer remain. */
static uint8_t* take(Request* request, uint64_t num_bytes) {
  if (num_bytes > request->left) {
    fail(request, cut_off);
    return NULL;
  }
  uint8_t* taken = request->at;
  request->at += (size_t)num_bytes;
  request->left -= (size_t)num_bytes;
  return taken;
}

static uint64_t number(Request* request, size_t num_bytes) {
  const uint8_t* bytes = take(request, num_bytes);
  uint64_t value = 0;
  for (size_t i = 0; bytes != NULL && i < num_bytes; ++i) value |= (uint64_t)bytes[i] << 8 * i;
  return value;
}

uint32_t request_u32(Request* request) { return (uint32_t)number(request, sizeof(uint32_t)); }

uint64_t request_u64(Request* request) { return number(request, sizeof(uint64_t)); }

void* request_pointer(Request* request) {
  const uint64_t value = request_u64(request);
  if (value > UINTPTR_MAX) {
    fail(request, "an address is too large for this machine");
    return NULL;
  }
  return (void*)(uintptr_t)value;
}

static DLDevice read_device(Request* request) {
  DLDevice device;
  device.device_type = (DLDeviceType)request_u32(request);
  device.device_id = (int32_t)request_u32(request);
  return device;
}

static DLDataType read_type(Request* request) {
  DLDataType type;
  type.code = (uint8_t)number(request, 1);
  type.bits = (uint8_t)number(request, 1);
  type.lanes = (uint16_t)number(request, 2);
  return type;
}

void request_tensor(Request* request, DLTensor* tensor, int64_t shape[TVM_CRT_MAX_NDIM]) {
  memset(tensor, 0, sizeof(*tensor));
  tensor->data = request_pointer(request);
  tensor->device = read_device(request);
  const uint32_t ndim = request_u32(request);
  tensor->dtype = read_type(request);
  if (ndim > TVM_CRT_MAX_NDIM) {
    fail(request, "a tensor has too many dimensions: raise TVM_CRT_MAX_NDIM");
    return;
  }
  for (uint32_t i = 0; i < ndim; ++i) shape[i] = (int64_t)request_u64(request);
  tensor->ndim = (int32_t)ndim;
  tensor->shape = shape;
  tensor->byte_offset = request_u64(request);
}

/* Whether a call may pass this tensor to a function, which may access all of it. */
static void check_tensor(Request* request, const DLTensor* tensor) {
  size_t bytes;
  uint8_t* memory;
  if (request->fault != NULL || !request->tensors_exist) return;
  if (!tvm_crt_tensor_bytes(tensor, &bytes) ||
      !request_memory(tensor->data, tensor->byte_offset, bytes, &memory)) {
    fail(request, "a tensor lies outside of the memory that hosts may use");
  }
}

/* Moves a string over its length prefix, to make room for a terminator. */
static const char* read_string(Request* request) {
  const uint64_t length = request_u64(request);
  uint8_t* text = take(request, length);
  if (text == NULL) return "";
  char* moved = (char*)text - sizeof(uint64_t);
  memmove(moved, text, (size_t)length);
  moved[length] = '\0';
  return moved;
}

static void read_value(Request* request, RequestArgs* args, int index) {
  TVMValue* value = &args->values[index];
  RequestObject* object = &args->objects[index];
  value->v_int64 = 0;
  switch (args->codes[index]) {
    case kTVMArgInt:
    case kTVMArgFloat: value->v_int64 = (int64_t)request_u64(request); break;
    case kTVMOpaqueHandle:
    case kTVMModuleHandle:
    case kTVMPackedFuncHandle: value->v_handle = request_pointer(request); break;
    case kTVMNullptr: break;
    case kTVMDataType:
      value->v_type = read_type(request);
      take(request, 4);
      break;
    case kDLDevice: value->v_device = read_device(request); break;
    case kTVMDLTensorHandle:
      request_tensor(request, &object->tensor, args->shapes[index]);
      check_tensor(request, &object->tensor);
      value->v_handle = &object->tensor;
      break;
    case kTVMStr: value->v_str = read_string(request); break;
    case kTVMBytes:
      object->bytes.size = (size_t)request_u64(request);
      object->bytes.data = (const char*)take(request, object->bytes.size);
      value->v_handle = &object->bytes;
      break;
    default: fail(request, "an argument has a type that this server does not take");
  }
}

void request_args(Request* request, RequestArgs* args) {
  const uint32_t count = request_u32(request);
  args->count = 0;
  if (request->fault == NULL && count > REQUEST_MAX_ARGS) fail(request, "too many arguments: raise TVM_CRT_MAX_ARGS");
  if (request->fault != NULL) return;
  for (uint32_t i = 0; i < count; ++i) args->codes[i] = (int)request_u32(request);
  for (uint32_t i = 0; i < count; ++i) read_value(request, args, (int)i);
  args->count = (int)count;
}

void request_end(Request* request) {
  if (request->left != 0) fail(request, "the request is longer than what it holds");
}

/* Computes with integers, since arithmetic on invalid pointers is undefined. */
bool request_memory(const void* base, uint64_t offset, size_t num_bytes, uint8_t** out) {
  const uintptr_t begin = (uintptr_t)base;
  *out = (uint8_t*)begin;
  if (num_bytes == 0) return true;
  if (begin == 0 || offset > UINTPTR_MAX - begin || num_bytes > UINTPTR_MAX - begin - (uintptr_t)offset) return false;
  *out = (uint8_t*)(begin + (uintptr_t)offset);
  return !TVM_CRT_RPC_OWN_MEMORY_ONLY || remote_memory_holds(*out, num_bytes) ||
         tvm_crt_modules_hold(*out, num_bytes) || request_is_constant(*out, num_bytes);
}

bool request_is_constant(const void* address, size_t num_bytes) {
  (void)address;
  (void)num_bytes;
  return TVM_CRT_RPC_IS_CONSTANT(address, num_bytes);
}
