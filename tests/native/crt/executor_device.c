/*
 * A device on the standard streams, structured like microTVM's host project: its main function registers the graph
 * executor, the server registers the AOT executor, and the model's files define the function table. It counts
 * allocated blocks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/aot_executor_module.h>
#include <tvm/runtime/crt/graph_executor_module.h>
#include <tvm/runtime/crt/logging.h>
#include <tvm/runtime/crt/microtvm_rpc_server.h>

static int64_t live = 0;
static microtvm_rpc_server_t server;

tvm_crt_error_t TVMPlatformInitialize(void) { return kTvmErrorNoError; }

tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr) {
  (void)dev;
  *out_ptr = malloc(num_bytes > 0 ? num_bytes : 1);
  if (*out_ptr == NULL) return kTvmErrorPlatformNoMemory;
  ++live;
  return kTvmErrorNoError;
}

tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev) {
  (void)dev;
  free(ptr);
  --live;
  return kTvmErrorNoError;
}

void TVMPlatformAbort(tvm_crt_error_t code) {
  fprintf(stderr, "aborted with %x\n", (unsigned)code);
  exit(5);
}

size_t TVMPlatformFormatMessage(char* out_buf, size_t out_buf_size_bytes, const char* fmt, va_list args) {
  const int length = vsnprintf(out_buf, out_buf_size_bytes, fmt, args);
  return length < 0 ? 0 : (size_t)length;
}

tvm_crt_error_t TVMPlatformTimerStart(void) { return kTvmErrorNoError; }

/* Always reports one second, so every measurement is long enough. */
tvm_crt_error_t TVMPlatformTimerStop(double* elapsed_time_seconds) {
  *elapsed_time_seconds = 1;
  return kTvmErrorNoError;
}

tvm_crt_error_t TVMPlatformBeforeMeasurement(void) { return kTvmErrorNoError; }

tvm_crt_error_t TVMPlatformAfterMeasurement(void) { return kTvmErrorNoError; }

tvm_crt_error_t TVMPlatformGenerateRandom(uint8_t* buffer, size_t num_bytes) {
  static uint8_t next = 0;
  for (size_t i = 0; i < num_bytes; ++i) buffer[i] = ++next;
  return kTvmErrorNoError;
}

static ssize_t write_out(void* context, const uint8_t* data, size_t num_bytes) {
  (void)context;
  const size_t written = fwrite(data, 1, num_bytes, stdout);
  return fflush(stdout) == 0 ? (ssize_t)written : -1;
}

/* Returns the number of allocated blocks. */
static int count_live(TVMValue* args, int* codes, int count, TVMValue* ret, int* ret_code, void* resource) {
  (void)args;
  (void)codes;
  (void)count;
  (void)resource;
  ret->v_int64 = live;
  *ret_code = kTVMArgInt;
  return 0;
}

/* Restarts the server, as firmware does after a line fault. */
static int start_again(TVMValue* args, int* codes, int count, TVMValue* ret, int* ret_code, void* resource) {
  (void)args;
  (void)codes;
  (void)count;
  (void)ret;
  (void)ret_code;
  (void)resource;
  server = MicroTVMRpcServerInit(write_out, NULL);
  return server == NULL ? -1 : 0;
}

static tvm_crt_error_t add_global(const char* name, TVMBackendPackedCFunc function) {
  union {
    TVMBackendPackedCFunc function;
    void* pointer;
  } both = {function};
  return (tvm_crt_error_t)TVMFuncRegisterGlobal(name, both.pointer, 0);
}

int main(void) {
  int byte;
  TVMPlatformInitialize();
  server = MicroTVMRpcServerInit(write_out, NULL);
  CHECK(server != NULL);
  CHECK_EQ(TVMGraphExecutorModule_Register(), kTvmErrorNoError, "the graph executor is there already");
  CHECK_EQ(add_global("test.count_live", count_live), kTvmErrorNoError, "there is no room for functions");
  CHECK_EQ(add_global("test.start_again", start_again), kTvmErrorNoError, "there is no room for functions");
  while ((byte = getchar()) != EOF) {
    uint8_t received = (uint8_t)byte;
    uint8_t* cursor = &received;
    size_t left = 1;
    while (left > 0) {
      const tvm_crt_error_t error = MicroTVMRpcServerLoop(server, &cursor, &left);
      if (error == kTvmErrorPlatformShutdown) return 0;
      if (error != kTvmErrorNoError) return 4;
    }
  }
  return 0;
}
