/*
 * libFuzzer harness: any bytes from a host to a device with the RPC server. The first byte selects whether they are raw
 * bytes of the line, or requests of a session, each preceded by its length.
 */
#include <stdbool.h>
#include <stdint.h>
#include <tvm/runtime/crt/graph_executor_module.h>
#include <tvm/runtime/crt/microtvm_rpc_server.h>
#include <tvm/runtime/crt/module.h>
#include <tvm/runtime/crt/rpc_common/session.h>
#include <tvm/runtime/metadata_types.h>

#include "crt_platform.h"

enum { LINE_BYTES = 65536, DEVICE_NONCE = 7, HOST_NONCE = 1, MOST_CALLS = 1000, START = 0xFD, SECONDS = 1000000 };

static int calls_left;

/* Reads its inputs and writes its last one, up to a number of calls. */
static int touch_arguments(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, void* resource) {
  (void)ret;
  (void)ret_code;
  (void)resource;
  if (calls_left-- <= 0) return -1;
  for (int i = 0; i < num_args; ++i) {
    if (codes[i] == kTVMDLTensorHandle) touch((const DLTensor*)args[i].v_handle, i == num_args - 1);
    if (codes[i] == kTVMStr && strlen(args[i].v_str) > LINE_BYTES) abort();
  }
  if (num_args > 0 && codes[0] != kDLDevice && codes[0] != kTVMDataType && codes[0] != kTVMDLTensorHandle) {
    *ret = args[0];
    *ret_code = codes[0];
  }
  return 0;
}

static const int64_t shape[] = {2, 3};
static const TVMTensorInfo tensors[] = {{"x", shape, 2, {kDLFloat, 32, 1}}, {"y", shape, 2, {kDLInt, 8, 1}}};
static const TVMMetadata tables = {1, tensors, 1, tensors + 1, 1, NULL, 0, NULL, 0, "tvmgen_default"};

static int get_tables(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, void* resource) {
  (void)args;
  (void)codes;
  (void)num_args;
  (void)resource;
  ret->v_handle = (void*)(uintptr_t)&tables;
  *ret_code = kTVMOpaqueHandle;
  return 0;
}

static int run_module(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, void* resource) {
  (void)ret;
  (void)ret_code;
  (void)resource;
  if (calls_left-- <= 0) return -1;
  for (int i = 0; i < num_args; ++i) {
    if (codes[i] == kTVMDLTensorHandle || codes[i] == kTVMNDArrayHandle) {
      touch((const DLTensor*)args[i].v_handle, i == num_args - 1);
    }
  }
  return 0;
}

static const TVMBackendPackedCFunc functions[] = {touch_arguments, run_module, get_tables};
static const TVMFuncRegistry registry = {
    "\003\000add\000tvmgen_default_run\000tvmgen_default_get_c_metadata\000", functions};
static const TVMModule module = {&registry};

const TVMModule* TVMSystemLibEntryPoint(void) { return &module; }

tvm_crt_error_t TVMPlatformTimerStart(void) { return kTvmErrorNoError; }

/* Reports a constant, so that no repetition counts as too short. */
tvm_crt_error_t TVMPlatformTimerStop(double* elapsed_time_seconds) {
  *elapsed_time_seconds = SECONDS;
  return kTvmErrorNoError;
}

tvm_crt_error_t TVMPlatformBeforeMeasurement(void) { return kTvmErrorNoError; }

tvm_crt_error_t TVMPlatformAfterMeasurement(void) { return kTvmErrorNoError; }

tvm_crt_error_t TVMPlatformGenerateRandom(uint8_t* buffer, size_t num_bytes) {
  memset(buffer, DEVICE_NONCE, num_bytes);
  return kTvmErrorNoError;
}

size_t TVMPlatformFormatMessage(char* out_buf, size_t out_buf_size_bytes, const char* fmt, va_list args) {
  (void)fmt;
  (void)args;
  if (out_buf_size_bytes > 0) out_buf[0] = '\0';
  return 0;
}

/* Reads the device's answers and discards them. */
static ssize_t to_host(void* context, const uint8_t* data, size_t num_bytes) {
  (void)context;
  if (num_bytes > 0 && memchr(data, START, num_bytes) == data + num_bytes) abort();
  return (ssize_t)num_bytes;
}

typedef struct {
  uint8_t bytes[LINE_BYTES];
  size_t size;
} Line;

static ssize_t to_line(void* context, const uint8_t* data, size_t num_bytes) {
  Line* line = (Line*)context;
  if (num_bytes > LINE_BYTES - line->size) return -1;
  memcpy(line->bytes + line->size, data, num_bytes);
  line->size += num_bytes;
  return (ssize_t)num_bytes;
}

static void send(TVMFramer* framer, uint16_t session, uint8_t type, const uint8_t* body, size_t num_bytes) {
  const uint8_t header[TVM_SESSION_HEADER_BYTES] = {(uint8_t)(session & 0xFF), (uint8_t)(session >> 8), type};
  if (TVMFramer_StartPacket(framer, sizeof(header) + num_bytes) != kTvmErrorNoError) return;
  if (TVMFramer_WritePayload(framer, header, sizeof(header)) != kTvmErrorNoError) return;
  if (num_bytes > 0 && TVMFramer_WritePayload(framer, body, num_bytes) != kTvmErrorNoError) return;
  TVMFramer_FinishPacket(framer);
}

/* Turns the requests into packets of a session: each has its code, and gets its length. */
static void send_requests(Line* line, const uint8_t* data, size_t size) {
  static const uint8_t version = TVM_SESSION_VERSION;
  const TVMWriteStream stream = {to_line, line};
  TVMFramer framer;
  TVMFramer_Init(&framer, &stream);
  send(&framer, HOST_NONCE, kTvmMessageStartSessionInit, &version, 1);
  while (size > 0) {
    uint8_t body[sizeof(uint64_t) + UINT8_MAX] = {0};
    const size_t length = data[0] < size ? data[0] : size - 1;
    body[0] = (uint8_t)length;
    memcpy(body + sizeof(uint64_t), data + 1, length);
    send(&framer, HOST_NONCE | DEVICE_NONCE << 8, kTvmMessageNormal, body, sizeof(uint64_t) + length);
    data += length + 1;
    size -= length + 1;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Line line;
  static bool registered = false;
  if (size == 0) return 0;
  calls_left = MOST_CALLS;
  microtvm_rpc_server_t server = MicroTVMRpcServerInit(to_host, NULL);
  if (server == NULL) abort();
  if (!registered && TVMGraphExecutorModule_Register() != kTvmErrorNoError) abort();
  registered = true;
  line.size = 0;
  if (data[0] % 2 == 0) {
    to_line(&line, data + 1, size - 1);
  } else {
    send_requests(&line, data + 1, size - 1);
  }
  uint8_t* at = line.bytes;
  size_t left = line.size;
  while (left > 0 && MicroTVMRpcServerLoop(server, &at, &left) == kTvmErrorNoError) {
  }
  if (at + left != line.bytes + line.size) abort();
  if (MicroTVMRpcServerInit(to_host, NULL) == NULL) abort();
  require_all_freed();
  return 0;
}
