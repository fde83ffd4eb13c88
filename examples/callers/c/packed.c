/* Loads the digits library at run time and calls its classic packed function as TVM's runtime does, but without
 * TVM. SPDX-License-Identifier: 0BSD */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

enum { KDL_CPU = 1, KDL_FLOAT = 2, TENSOR_HANDLE = 7, NOTHING = 4 };

typedef struct {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

typedef union {
  int64_t integer;
  double number;
  void *handle;
} Value;

typedef int (*PackedFunction)(Value *, int *, int, Value *, int *, void *);

static Tensor floats(float *data, int64_t *shape, int32_t ndim) {
  Tensor tensor = {data, KDL_CPU, 0, ndim, {KDL_FLOAT, 32, 1}, shape, NULL, 0};
  return tensor;
}

static int run(void *library, float *image, float *probabilities) {
  int64_t image_shape[] = {1, 1, 8, 8}, out_shape[] = {1, 10};
  Tensor tensors[] = {floats(image, image_shape, 4), floats(probabilities, out_shape, 2)};
  Value arguments[] = {{.handle = &tensors[0]}, {.handle = &tensors[1]}}, result = {0};
  int codes[] = {TENSOR_HANDLE, TENSOR_HANDLE}, result_code = NOTHING;
  const char *(*last_error)(void);
  PackedFunction function;
  /* ISO C has no conversion from void * to function pointers; POSIX guarantees one through memory */
  *(void **)&function = dlsym(library, "tvmgen_digits___tvm_main__");
  *(void **)&last_error = dlsym(library, "TVMGetLastError");
  if (function == NULL || last_error == NULL) return 1;
  if (function(arguments, codes, 2, &result, &result_code, NULL) == 0) return 0;
  fprintf(stderr, "%s\n", last_error());
  return 1;
}

int main(int argc, char **argv) {
  float image[64], probabilities[10];
  FILE *file = argc == 4 ? fopen(argv[2], "rb") : NULL;
  if (file == NULL || fread(image, sizeof image, 1, file) != 1) {
    fprintf(stderr, "usage: packed LIBRARY IMAGE OUT; the image has %zu bytes\n", sizeof image);
    return 2;
  }
  fclose(file);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  if (run(library, image, probabilities) != 0) return 1;
  file = fopen(argv[3], "wb");
  return file == NULL || fwrite(probabilities, sizeof probabilities, 1, file) != 1 || fclose(file) != 0;
}
