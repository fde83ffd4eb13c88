/* Lets a host call the model's operators over a serial line. SPDX-License-Identifier: 0BSD */
#include <tvm/runtime/crt/microtvm_rpc_server.h>
#include <tvm/runtime/crt/platform.h>

#include "parameters.h"
#include "uart.h"

enum { NO_MEMORY = 1, NO_SERVER = 2, LINE_IS_GONE = 3 };

static ssize_t write_to_host(void *context, const uint8_t *data, size_t nbytes) {
  (void)context;
  return uart_write(data, nbytes) == 0 ? (ssize_t)nbytes : -1;
}

int main(void) {
  uart_start();
  if (TVMPlatformInitialize() != kTvmErrorNoError) {
    return NO_MEMORY;
  }
  microtvm_rpc_server_t server = MicroTVMRpcServerInit(write_to_host, NULL);
  if (server == NULL || parameters_register() != 0) {
    return NO_SERVER;
  }
  for (;;) {
    const int byte = uart_read();
    uint8_t received = (uint8_t)byte;
    uint8_t *data = &received;
    size_t nbytes = 1;
    if (byte < 0) {
      return 0;
    }
    const tvm_crt_error_t error = MicroTVMRpcServerLoop(server, &data, &nbytes);
    if (error != kTvmErrorNoError) {
      return error == kTvmErrorPlatformShutdown ? 0 : LINE_IS_GONE;
    }
  }
}
