/* Operators called by the tests' graphs. */
#include <stddef.h>
#include <string.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/module.h>

#define OPERATOR(name) \
  static int name(TVMValue* args, int* codes, int num_args, TVMValue* ret, int* ret_code, void* resource)
#define UNUSED ((void)args, (void)codes, (void)num_args, (void)ret, (void)ret_code, (void)resource)

static DLTensor* tensor(const TVMValue* args, int index) { return (DLTensor*)args[index].v_handle; }

static int64_t count(const DLTensor* of) {
  int64_t product = 1;
  for (int i = 0; i < of->ndim; ++i) product *= of->shape[i];
  return product;
}

/* Adds its second argument, repeated as often as needed, to its first. */
OPERATOR(add) {
  UNUSED;
  const float* a = (const float*)tensor(args, 0)->data;
  const float* b = (const float*)tensor(args, 1)->data;
  float* out = (float*)tensor(args, 2)->data;
  if (num_args != 3 || codes[0] != kTVMNDArrayHandle) return -2;
  for (int64_t i = 0; i < count(tensor(args, 2)); ++i) out[i] = a[i] + b[i % count(tensor(args, 1))];
  return 0;
}

/* Returns the rank of its argument and the size of its first dimension. */
OPERATOR(describe) {
  UNUSED;
  float* out = (float*)tensor(args, 1)->data;
  out[0] = (float)tensor(args, 0)->ndim;
  out[1] = tensor(args, 0)->ndim == 0 ? -1.0f : (float)tensor(args, 0)->shape[0];
  return 0;
}

/* Has two outputs: the sum and the number of elements. */
OPERATOR(summarize) {
  UNUSED;
  const DLTensor* in = tensor(args, 0);
  float sum = 0;
  for (int64_t i = 0; i < count(in); ++i) sum += ((const float*)in->data)[i];
  ((float*)tensor(args, 1)->data)[0] = sum;
  ((float*)tensor(args, 2)->data)[0] = (float)count(in);
  return 0;
}

OPERATOR(fail) {
  UNUSED;
  return -3;
}

static const TVMBackendPackedCFunc functions[] = {add, describe, summarize, fail};
static const TVMFuncRegistry registry = {"\004\000add\000describe\000summarize\000fail\000", functions};
static const TVMModule module = {&registry};

const TVMModule* TVMSystemLibEntryPoint(void) { return &module; }
