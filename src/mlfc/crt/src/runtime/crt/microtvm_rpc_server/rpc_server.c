/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <stdarg.h>
#include <string.h>
#include <tvm/runtime/crt/crt.h>
#include <tvm/runtime/crt/logging.h>
#include <tvm/runtime/crt/microtvm_rpc_server.h>
#include <tvm/runtime/crt/platform.h>

#include "../common/config.h"
#include "minrpc_server.h"
#include "server_functions.h"

enum { LOG_BYTES = 256 };

static TVMSession session;
static TVMUnframer unframer;
static uint8_t received[TVM_CRT_MAX_PACKET_SIZE_BYTES];
static bool running = false;

microtvm_rpc_server_t MicroTVMRpcServerInit(microtvm_rpc_channel_write_t write_func, void* write_func_ctx) {
  const TVMWriteStream stream = {write_func, write_func_ctx};
  running = false;
  if (TVMInitializeRuntime() != kTvmErrorNoError || server_functions_register() != kTvmErrorNoError) return NULL;
  minrpc_end_session();
  TVMUnframer_Init(&unframer, received, sizeof(received));
  if (TVMSession_Init(&session, &stream) != kTvmErrorNoError) return NULL;
  running = true;
  return &session;
}

tvm_crt_error_t MicroTVMRpcServerLoop(microtvm_rpc_server_t server, uint8_t** new_data, size_t* new_data_size_bytes) {
  const uint8_t* data = *new_data;
  TVMSessionEvent event;
  if (server == NULL || !running) return kTvmErrorPlatformShutdown;
  const bool complete = TVMUnframer_Read(&unframer, &data, new_data_size_bytes);
  *new_data += data - *new_data;
  if (!complete) return kTvmErrorNoError;
  tvm_crt_error_t error = TVMSession_Handle(&session, received, unframer.length, &event);
  if (error != kTvmErrorNoError || event == kTvmSessionNothing) return error;
  if (event != kTvmSessionMessage) {
    minrpc_end_session();
    return kTvmErrorNoError;
  }
  error = minrpc_handle(&session, received + TVM_SESSION_HEADER_BYTES, unframer.length - TVM_SESSION_HEADER_BYTES);
  if (error == kTvmErrorPlatformShutdown) {
    minrpc_end_session();
    running = false;
  }
  return error;
}

/* Log lines go to the host, which shows them. */
void TVMLogf(const char* fmt, ...) {
  char line[LOG_BYTES];
  va_list args;
  va_start(args, fmt);
  const size_t length = TVMPlatformFormatMessage(line, sizeof(line), fmt, args);
  va_end(args);
  const size_t kept = length < sizeof(line) ? length : sizeof(line) - 1;
  if (running) TVMSession_SendMessage(&session, kTvmMessageLog, (const uint8_t*)line, kept);
}
