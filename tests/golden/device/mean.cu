#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT64_C(x) x##LL
#define UINT32_C(x) x##U
#define UINT64_C(x) x##ULL
#define INFINITY __uint_as_float(0x7f800000U)
#define NAN __uint_as_float(0x7fffffffU)
#else
#include <math.h>
#include <stdint.h>
#endif

extern "C" __global__ void __launch_bounds__(256)
mean_kernel(const float *__restrict__ x, float *__restrict__ output) {
  const int32_t item_x = (int32_t)threadIdx.x;
  const int32_t item_y = (int32_t)threadIdx.y;
  __shared__ __align__(16) float partial[256];
  __align__(16) float total[1];
  total[0] = 0.0f;
  for (int32_t turn = 0; turn < 3; ++turn) {
    const int32_t place = turn * 16 + item_y;
    if (place < 36) {
      total[0] += x[(place / 6) * 96 + (place % 6) * 16 + item_x];
    }
  }
  partial[item_y * 16 + item_x] = total[0];
  __syncthreads();
  if (item_y < 8) {
    partial[item_y * 16 + item_x] += partial[item_y * 16 + item_x + 128];
  }
  __syncthreads();
  if (item_y < 4) {
    partial[item_y * 16 + item_x] += partial[item_y * 16 + item_x + 64];
  }
  __syncthreads();
  if (item_y < 2) {
    partial[item_y * 16 + item_x] += partial[item_y * 16 + item_x + 32];
  }
  __syncthreads();
  if (item_y < 1) {
    partial[item_y * 16 + item_x] += partial[item_y * 16 + item_x + 16];
  }
  __syncthreads();
  if (item_y == 0) {
    output[item_x] = partial[item_x] / 36.0f;
  }
}
