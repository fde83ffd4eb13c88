/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "server_functions.h"

#include <mlfc_checksum.h>
#include <stdbool.h>
#include <stddef.h>
#include <tvm/runtime/crt/aot_executor_module.h>
#include <tvm/runtime/crt/platform.h>
#include <tvm/runtime/crt/rpc_common/session.h>

#include "../common/arguments.h"
#include "../common/config.h"
#include "../common/error_text.h"
#include "../common/handles.h"
#include "../common/tensor.h"
#include "time_evaluator.h"

/*
 * Returns a function of a module, or nothing if it does not exist. Global functions are searched in place of imports:
 * firmware registers functions there that belong to the model and are not in a table of generated code.
 */
MODULE_FUNCTION(get_function) {
  TVMFunctionHandle function;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = tvm_crt_check_arguments("tvm.rpc.server.ModuleGetFunction", "msi", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  int status = TVMModGetFunction(args[0].v_handle, args[1].v_str, 0, &function);
  if (status == kTvmErrorFunctionNameNotFound && args[2].v_int64 != 0) {
    status = TVMFuncGetGlobal(args[1].v_str, &function);
  }
  if (status == kTvmErrorFunctionNameNotFound) return 0;
  ret->v_handle = function;
  *ret_code = kTVMPackedFuncHandle;
  return status;
}

/* The longest request: the capacity of the largest packet. */
MODULE_FUNCTION(get_max_packet_size) {
  UNUSED_PARAMETERS;
  const int overhead = TVM_FRAMING_OVERHEAD_BYTES + TVM_SESSION_HEADER_BYTES;
  return tvm_crt_return_int(ret, ret_code, TVM_CRT_MAX_PACKET_SIZE_BYTES - overhead);
}

MODULE_FUNCTION(random_fill) {
  size_t bytes;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = tvm_crt_check_arguments("tvm.contrib.random.random_fill", "t", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const DLTensor* tensor = (const DLTensor*)args[0].v_handle;
  if (!tvm_crt_tensor_bytes(tensor, &bytes)) {
    return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "the tensor is too large");
  }
  if (bytes == 0) return 0;
  return TVMPlatformGenerateRandom((uint8_t*)tensor->data + tensor->byte_offset, bytes);
}

/* Extension of mlfc: the CRC-32 of a tensor, with which a host decides whether to send it. */
MODULE_FUNCTION(checksum) {
  size_t bytes;
  UNUSED_PARAMETERS;
  const tvm_crt_error_t error = tvm_crt_check_arguments("mlfc.checksum", "t", codes, num_args);
  if (error != kTvmErrorNoError) return error;
  const DLTensor* tensor = (const DLTensor*)args[0].v_handle;
  if (!tvm_crt_tensor_bytes(tensor, &bytes)) {
    return tvm_crt_fail(kTvmErrorFunctionCallInvalidArg, "the tensor is too large");
  }
  ret->v_int64 = bytes == 0 ? 0 : mlfc_checksum((const uint8_t*)tensor->data + tensor->byte_offset, bytes);
  *ret_code = kTVMArgInt;
  return 0;
}

tvm_crt_error_t server_functions_register(void) {
  static const struct {
    const char* name;
    TVMBackendPackedCFunc function;
  } functions[] = {
      {"tvm.rpc.server.ModuleGetFunction", get_function},
      {"runtime.RPCTimeEvaluator", time_evaluator_create},
      {"tvm.rpc.server.GetCRTMaxPacketSize", get_max_packet_size},
      {"tvm.contrib.random.random_fill", random_fill},
  };
  static bool registered = false;
  if (registered) return kTvmErrorNoError;
  for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); ++i) {
    const tvm_crt_error_t error = tvm_crt_register_global(functions[i].name, functions[i].function);
    if (error != kTvmErrorNoError) return error;
  }
#if TVM_CRT_RPC_AOT_EXECUTOR
  const tvm_crt_error_t error = TVMAotExecutorModule_Register();
  if (error != kTvmErrorNoError) return error;
#endif
  /* The tables of firmware for microTVM may be full; hosts do not require this function. */
  tvm_crt_register_global("mlfc.checksum", checksum);
  registered = true;
  return kTvmErrorNoError;
}
