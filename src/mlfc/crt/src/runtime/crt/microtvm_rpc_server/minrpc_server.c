/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "minrpc_server.h"

#include <string.h>
#include <tvm/runtime/c_backend_api.h>

#include "../common/handles.h"
#include "../common/tensor.h"
#include "remote_memory.h"
#include "reply.h"
#include "request.h"
#include "rpc_code.h"
#include "time_evaluator.h"

/* Static, because it is too large for a microcontroller's stack. */
static RequestArgs args;
static bool module_is_hosts[TVM_CRT_MAX_REGISTERED_MODULES];

enum { MODULE_VALID = 0x8000, ALLOCATION_ALIGNMENT = 64 };

static const char outside[] = "a copy leaves the memory that hosts may use";
static const char constant[] =
    "these values are constants of the firmware, which other values cannot replace: build it with the new ones";

void minrpc_end_session(void) {
  remote_memory_free_all();
  time_evaluator_release();
  for (size_t i = 0; i < TVM_CRT_MAX_REGISTERED_MODULES; ++i) {
    if (module_is_hosts[i]) TVMModFree((TVMModuleHandle)(uintptr_t)(i | MODULE_VALID));
    module_is_hosts[i] = false;
  }
}

/* Objects created by a call belong to the host, even if it did not receive the handle. */
static void remember_modules_since(const ModuleSnapshot* before) {
  const ModuleSnapshot now = tvm_crt_modules_taken();
  for (size_t i = 0; i < TVM_CRT_MAX_REGISTERED_MODULES; ++i) {
    if (now.taken[i] && !before->taken[i]) module_is_hosts[i] = true;
  }
}

static void forget_module(TVMModuleHandle module) {
  const uintptr_t index = (uintptr_t)module & ~(uintptr_t)MODULE_VALID;
  if (index < TVM_CRT_MAX_REGISTERED_MODULES) module_is_hosts[index] = false;
}

static tvm_crt_error_t reply_error(TVMSession* session) {
  const char* text = TVMGetLastError();
  return reply_exception(session, text[0] != '\0' ? text : "the function failed");
}

static tvm_crt_error_t reply_status(TVMSession* session, int status) {
  return status == 0 ? reply_nothing(session) : reply_error(session);
}

/* Returns whether the arguments are of these kinds: i integer, d device, h handle, t tensor, y type, s text, * any. */
static bool has_kinds(const char* kinds) {
  if (args.count != (int)strlen(kinds)) return false;
  for (int i = 0; i < args.count; ++i) {
    const int code = args.codes[i];
    const bool fits = kinds[i] == 'i'   ? code == kTVMArgInt
                      : kinds[i] == 'd' ? code == kDLDevice
                      : kinds[i] == 'h' ? code == kTVMOpaqueHandle
                      : kinds[i] == 't' ? code == kTVMDLTensorHandle
                      : kinds[i] == 'y' ? code == kTVMDataType
                      : kinds[i] == 's' ? code == kTVMStr
                                        : true;
    if (!fits) return false;
  }
  return true;
}

static tvm_crt_error_t call_function(TVMSession* session, Request* request) {
  TVMFunctionHandle function = request_pointer(request);
  TVMValue value = {0};
  int code = kTVMNullptr;
  request_args(request, &args);
  request_end(request);
  for (int i = 0; TVM_CRT_RPC_OWN_MEMORY_ONLY && i < args.count; ++i) {
    /* An operator would interpret arbitrary memory as a tensor. */
    if (args.codes[i] != kTVMOpaqueHandle || request->fault != NULL) continue;
    request->fault = "handles cannot be arguments here";
  }
  if (request->fault != NULL) return reply_exception(session, request->fault);
  TVMAPISetLastError("");
  const ModuleSnapshot before = tvm_crt_modules_taken();
  const int status =
      time_evaluator_is(function)
          ? time_evaluator_call(function, args.values, args.codes, args.count, &value, &code)
          : TVMFuncCall(function, args.values, args.codes, args.count, &value, &code);
  remember_modules_since(&before);
  return status != 0 ? reply_error(session) : reply_result(session, value, code);
}

/* Returns the memory that a copy accesses; NULL, and sets the request's fault, if not allowed. */
static uint8_t* copied_memory(Request* request, const DLTensor* tensor, uint64_t num_bytes) {
  size_t bytes;
  uint8_t* memory;
  if (request->fault != NULL) return NULL;
  if (!tvm_crt_tensor_bytes(tensor, &bytes) || tensor->byte_offset > bytes || num_bytes > bytes - tensor->byte_offset) {
    request->fault = "a copy is larger than its tensor";
    return NULL;
  }
  if (!request_memory(tensor->data, tensor->byte_offset, (size_t)num_bytes, &memory)) {
    request->fault = outside;
    return NULL;
  }
  return memory;
}

static tvm_crt_error_t copy_from_remote(TVMSession* session, Request* request) {
  DLTensor tensor;
  request_tensor(request, &tensor, args.shapes[0]);
  const uint64_t num_bytes = request_u64(request);
  request_end(request);
  const uint8_t* memory = copied_memory(request, &tensor, num_bytes);
  if (request->fault != NULL) return reply_exception(session, request->fault);
  return reply_bytes(session, memory, (size_t)num_bytes);
}

static tvm_crt_error_t copy_to_remote(TVMSession* session, Request* request) {
  DLTensor tensor;
  request_tensor(request, &tensor, args.shapes[0]);
  const uint64_t num_bytes = request_u64(request);
  uint8_t* memory = copied_memory(request, &tensor, num_bytes);
  if (request->fault == NULL && request->left != num_bytes) request->fault = "a copy has another size than its data";
  if (request->fault != NULL) return reply_exception(session, request->fault);
  if (num_bytes == 0) return reply_nothing(session);
  if (request_is_constant(memory, (size_t)num_bytes)) {
    /* Hosts set all parameters before they run a graph, often to the firmware's own values. */
    const bool same = memcmp(memory, request->at, (size_t)num_bytes) == 0;
    return same ? reply_nothing(session) : reply_exception(session, constant);
  }
  memcpy(memory, request->at, (size_t)num_bytes);
  return reply_nothing(session);
}

static tvm_crt_error_t free_handle(TVMSession* session) {
  void* handle = args.values[0].v_handle;
  switch (args.values[1].v_int64) {
    case kTVMModuleHandle:
      forget_module(handle);
      return reply_status(session, TVMModFree(handle));
    case kTVMPackedFuncHandle:
      if (!time_evaluator_is(handle)) return reply_status(session, TVMFuncFree(handle));
      time_evaluator_release();
      return reply_nothing(session);
    /* Arrays that functions return belong to their executors. */
    case kTVMNDArrayHandle: return reply_nothing(session);
    default: return reply_exception(session, "handles of this kind cannot be freed");
  }
}

static tvm_crt_error_t allocate(TVMSession* session, DLDevice device, uint64_t num_bytes, uint64_t alignment) {
  void* memory;
  const tvm_crt_error_t error = remote_memory_allocate(device, num_bytes, alignment, &memory);
  return error != kTvmErrorNoError ? reply_error(session) : reply_handle(session, memory);
}

static tvm_crt_error_t allocate_tensor(TVMSession* session) {
  const DLTensor* tensor = &args.objects[0].tensor;
  size_t bytes;
  if (!tvm_crt_tensor_bytes(tensor, &bytes)) return reply_exception(session, "the tensor is too large");
  return allocate(session, tensor->device, bytes, ALLOCATION_ALIGNMENT);
}

static tvm_crt_error_t copy_among_remote(TVMSession* session) {
  const DLTensor* target = &args.objects[1].tensor;
  size_t bytes;
  uint8_t* memory;
  if (!tvm_crt_tensor_bytes(target, &bytes) || !request_memory(target->data, target->byte_offset, bytes, &memory)) {
    return reply_exception(session, outside);
  }
  if (bytes > 0 && request_is_constant(memory, bytes)) return reply_exception(session, constant);
  return reply_status(session, tvm_crt_copy_elements(&args.objects[0].tensor, &args.objects[1].tensor));
}

static tvm_crt_error_t get_global_function(TVMSession* session) {
  TVMFunctionHandle function;
  /* An unknown function returns NULL, which is not an error. */
  TVMFuncGetGlobal(args.values[0].v_str, &function);
  return reply_handle(session, function);
}

/* The only attribute that hosts query is whether the device exists. */
static tvm_crt_error_t get_attribute(TVMSession* session) {
  TVMValue value;
  const bool asks_existence = args.values[1].v_int64 == 0;
  const int code = asks_existence ? kTVMArgInt : kTVMNullptr;
  value.v_int64 = args.values[0].v_device.device_type == kDLCPU && args.values[0].v_device.device_id == 0;
  return reply_values(session, kRpcReturn, &value, &code, 1);
}

/* Required arguments of requests with packed arguments. */
static const char* kinds_of(uint32_t code) {
  switch (code) {
    case kRpcGetGlobalFunc: return "s";
    case kRpcFreeHandle: return "hi";
    case kRpcDevSetDevice: return "d";
    case kRpcDevGetAttr: return "di";
    case kRpcDevAllocData: return "diiy";
    case kRpcDevFreeData: return "dh";
    case kRpcDevStreamSync: return "dh";
    case kRpcCopyAmongRemote: return "tth";
    case kRpcDevAllocDataWithScope: return "t*";
    case kRpcDevCreateStream: return "d";
    case kRpcDevFreeStream: return "dh";
    case kRpcDevSetStream: return "dh";
    default: return NULL;
  }
}

static tvm_crt_error_t system_call(TVMSession* session, Request* request, uint32_t code) {
  const char* kinds = kinds_of(code);
  if (kinds == NULL) return reply_exception(session, "this server does not know the request");
  /* The tensor of an allocation has no memory yet, so it is not checked. */
  request->tensors_exist = code != kRpcDevAllocDataWithScope;
  request_args(request, &args);
  request_end(request);
  if (request->fault != NULL) return reply_exception(session, request->fault);
  if (!has_kinds(kinds)) return reply_exception(session, "the request has other arguments than it needs");
  TVMAPISetLastError("");
  switch (code) {
    case kRpcGetGlobalFunc: return get_global_function(session);
    case kRpcFreeHandle: return free_handle(session);
    case kRpcDevGetAttr: return get_attribute(session);
    case kRpcDevAllocData:
      return allocate(session, args.values[0].v_device, (uint64_t)args.values[1].v_int64,
                      (uint64_t)args.values[2].v_int64);
    case kRpcDevFreeData: return reply_status(session, remote_memory_free(args.values[1].v_handle));
    case kRpcCopyAmongRemote: return copy_among_remote(session);
    case kRpcDevAllocDataWithScope: return allocate_tensor(session);
    /* The only stream completes each request before the next. */
    case kRpcDevCreateStream: return reply_handle(session, NULL);
    default: return reply_nothing(session);
  }
}

tvm_crt_error_t minrpc_handle(TVMSession* session, uint8_t* data, size_t num_bytes) {
  Request request = {data, num_bytes, true, NULL};
  const uint64_t length = request_u64(&request);
  if (request.fault == NULL && length != request.left) request.fault = "the request has another length than it says";
  const uint32_t code = request_u32(&request);
  if (request.fault != NULL) return reply_exception(session, request.fault);
  switch (code) {
    case kRpcShutdown: return kTvmErrorPlatformShutdown;
    case kRpcInitServer: return reply_nothing(session);
    case kRpcCallFunc: return call_function(session, &request);
    case kRpcCopyFromRemote: return copy_from_remote(session, &request);
    case kRpcCopyToRemote: return copy_to_remote(session, &request);
    default: return system_call(session, &request, code);
  }
}
