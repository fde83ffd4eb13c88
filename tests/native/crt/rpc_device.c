/*
 * A device on the standard streams, like firmware on a serial line: the RPC server and functions that tests call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tvm/runtime/crt/logging.h>
#include <tvm/runtime/crt/microtvm_rpc_server.h>
#include <tvm/runtime/crt/module.h>
#include <tvm/runtime/crt/platform.h>

#define FUNCTION(name) \
  static int name(TVMValue* args, int* codes, int count, TVMValue* ret, int* ret_code, void* resource)
#define UNUSED ((void)args, (void)codes, (void)count, (void)ret, (void)ret_code, (void)resource)

static ssize_t write_out(void* context, const uint8_t* data, size_t num_bytes) {
  (void)context;
  /* Writes at most 7 bytes per call, like a serial line. */
  const size_t written = fwrite(data, 1, num_bytes > 7 ? 7 : num_bytes, stdout);
  return fflush(stdout) == 0 ? (ssize_t)written : -1;
}

/* Returns its argument. */
FUNCTION(echo) {
  static TVMByteArray bytes;
  static char text[4096];
  UNUSED;
  if (count != 1) return kTvmErrorFunctionCallNumArguments;
  *ret = args[0];
  *ret_code = codes[0];
  /* The result must stay valid until it has been sent. */
  if (codes[0] == kTVMStr) {
    strncpy(text, args[0].v_str, sizeof(text) - 1);
    ret->v_str = text;
  } else if (codes[0] == kTVMBytes) {
    bytes = *(const TVMByteArray*)args[0].v_handle;
    ret->v_handle = &bytes;
  } else if (codes[0] == kTVMDLTensorHandle) {
    *ret_code = kTVMNDArrayHandle;
  }
  return 0;
}

/* The platform timer if built with -Dclock=calls_clock: each call of add takes one millisecond. */
static clock_t added;
clock_t calls_clock(void);
clock_t calls_clock(void) { return added; }

/* Adds two float32 tensors into the third. */
FUNCTION(add) {
  const DLTensor* out = (const DLTensor*)args[2].v_handle;
  int64_t elements = 1;
  UNUSED;
  added += CLOCKS_PER_SEC / 1000;
  for (int i = 0; i < out->ndim; ++i) elements *= out->shape[i];
  for (int64_t i = 0; i < elements; ++i) {
    ((float*)out->data)[i] = ((float*)((DLTensor*)args[0].v_handle)->data)[i] +
                             ((float*)((DLTensor*)args[1].v_handle)->data)[i];
  }
  return 0;
}

/* Returns the number of additions. */
FUNCTION(calls_of_add) {
  UNUSED;
  ret->v_int64 = (int64_t)(added / (CLOCKS_PER_SEC / 1000));
  *ret_code = kTVMArgInt;
  return 0;
}

/* Fails with its argument as the message. */
FUNCTION(refuse) {
  UNUSED;
  TVMAPISetLastError(args[0].v_str);
  return -1;
}

/* Logs its first argument as many times as its second argument. */
FUNCTION(say) {
  UNUSED;
  for (int64_t i = 0; i < args[1].v_int64; ++i) TVMLogf("%s\n", args[0].v_str);
  return 0;
}

/* Stops answering. */
FUNCTION(hang) {
  UNUSED;
  for (;;) {
    if (getchar() == EOF) exit(0);
  }
}

FUNCTION(leave) {
  UNUSED;
  exit(3);
}

static microtvm_rpc_server_t server;

/* Restarts, like a board after a reset. */
FUNCTION(restart) {
  UNUSED;
  TVMLogf("going down");
  server = MicroTVMRpcServerInit(write_out, NULL);
  return 0;
}

static const TVMBackendPackedCFunc functions[] = {echo, add, calls_of_add, refuse, say, hang, leave, restart};
static const TVMFuncRegistry registry = {
    "\010\000echo\000add\000calls_of_add\000refuse\000say\000hang\000leave\000restart\000", functions};
static const TVMModule module = {&registry};

const TVMModule* TVMSystemLibEntryPoint(void) { return &module; }

int main(void) {
  int byte;
  if (TVMPlatformInitialize() != kTvmErrorNoError) return 1;
  server = MicroTVMRpcServerInit(write_out, NULL);
  if (server == NULL) return 2;
  while ((byte = getchar()) != EOF) {
    uint8_t received = (uint8_t)byte;
    uint8_t* data = &received;
    size_t size = 1;
    const tvm_crt_error_t error = MicroTVMRpcServerLoop(server, &data, &size);
    if (error == kTvmErrorPlatformShutdown) return 0;
    if (error != kTvmErrorNoError) return 4;
  }
  return 0;
}
