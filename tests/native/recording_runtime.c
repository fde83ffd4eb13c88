/* A runtime for host functions that launch kernels: it finds every function and records each call with its
 * arguments. */
#include <stdio.h>
#include <string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/c_runtime_api.h>

#define MOST 32

extern void *__tvm_module_ctx;

static char text[256], names[MOST][160], record[4096];
static int found, refused_at, looked_up;

void TVMAPISetLastError(const char *message) { strncpy(text, message, sizeof text - 1); }

const char *last_error(void) { return text; }

/* the calls since the last query, one per line */
const char *take_record(void) {
  static char taken[sizeof record];
  memcpy(taken, record, sizeof record);
  record[0] = '\0';
  return taken;
}

int take_lookups(void) {
  const int count = looked_up;
  looked_up = 0;
  return count;
}

/* the number of the call that fails, counting from 1; 0 for none */
void refuse(int number) { refused_at = number; }

void enter_context(void *context) { __tvm_module_ctx = context; }

int TVMBackendGetFuncFromEnv(void *module, const char *name, TVMFunctionHandle *out) {
  ++looked_up;
  if (module == NULL || found == MOST) {
    TVMAPISetLastError("no module, or no room");
    return -1;
  }
  strncpy(names[found], name, sizeof names[found] - 1);
  *out = names[found++];
  return 0;
}

int TVMFuncCall(TVMFunctionHandle function, TVMValue *values, int *codes, int count, TVMValue *result, int *code) {
  size_t length = strlen(record);
  length += (size_t)snprintf(record + length, sizeof record - length, "%s", (const char *)function);
  for (int index = 0; index < count; ++index) {
    length += (size_t)snprintf(record + length, sizeof record - length, codes[index] == kTVMOpaqueHandle ? " @%llu" : " %lld",
                               (long long)values[index].v_int64);
  }
  snprintf(record + length, sizeof record - length, "\n");
  result->v_int64 = 0;
  *code = kTVMNullptr;
  if (refused_at != 0 && --refused_at == 0) {
    TVMAPISetLastError("the device is gone");
    return -1;
  }
  return 0;
}

void *TVMBackendAllocWorkspace(int device_type, int device_id, uint64_t nbytes, int code, int bits) {
  (void)device_type, (void)device_id, (void)nbytes, (void)code, (void)bits;
  return NULL;
}

int TVMBackendFreeWorkspace(int device_type, int device_id, void *pointer) {
  (void)device_type, (void)device_id, (void)pointer;
  return -1;
}
