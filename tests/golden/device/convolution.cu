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

static __device__ __forceinline__ float mlf_max_f32(float a, float b) {
  return a > b ? a : b;
}

static __device__ __forceinline__ int32_t mlf_min_i32(int32_t a, int32_t b) {
  return a < b ? a : b;
}

extern "C" __global__ void __launch_bounds__(16)
convolution_kernel(const float *__restrict__ x, const float *__restrict__ weights, float *__restrict__ parts) {
  const int32_t group_x = (int32_t)blockIdx.x;
  const int32_t group_y = (int32_t)blockIdx.y;
  const int32_t group_z = (int32_t)blockIdx.z;
  const int32_t item_x = (int32_t)threadIdx.x;
  __shared__ __align__(16) float a[160];
  __shared__ __align__(16) float b[128];
  const int32_t x_1 = item_x % 4;
  const int32_t y = item_x / 4;
  const int32_t row = group_y * 16;
  const int32_t column = group_x * 16;
  __align__(16) float a_next[8];
  __align__(16) float b_next[8];
  __align__(16) float sums[16];
  #pragma unroll
  for (int32_t s = 0; s < 16; ++s) {
    sums[s] = 0.0f;
  }
  const int32_t line = item_x / 2;
  const int32_t place = item_x % 2 * 4;
  const int32_t at = row + line;
  const int32_t pixel = mlf_min_i32(at, 35);
  const int32_t start = pixel / 6 - 1;
  const int32_t start_1 = pixel % 6 - 1;
  const int32_t line_1 = (item_x + 16) / 2;
  const int32_t place_1 = (item_x + 16) % 2 * 4;
  const int32_t at_1 = row + line_1;
  const int32_t pixel_1 = mlf_min_i32(at_1, 35);
  const int32_t start_2 = pixel_1 / 6 - 1;
  const int32_t start_3 = pixel_1 % 6 - 1;
  const int32_t line_2 = item_x % 4 * 4;
  const int32_t place_2 = item_x / 4;
  const int32_t at_2 = column + line_2;
  const int32_t line_3 = (item_x + 16) % 4 * 4;
  const int32_t place_3 = (item_x + 16) / 4;
  const int32_t at_3 = column + line_3;
  const int32_t tap = group_z * 6 / 2;
  const int32_t channel = group_z * 6 % 2 * 8;
  *(float4 *)(&a_next[0]) = start + tap / 3 >= 0 && start + tap / 3 < 6 && start_1 + tap % 3 >= 0 && start_1 + tap % 3 < 6 ? *(const float4 *)(&x[start * 96 + (tap / 3) * 96 + start_1 * 16 + (tap % 3) * 16 + channel + place]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  *(float4 *)(&a_next[4]) = start_2 + tap / 3 >= 0 && start_2 + tap / 3 < 6 && start_3 + tap % 3 >= 0 && start_3 + tap % 3 < 6 ? *(const float4 *)(&x[start_2 * 96 + (tap / 3) * 96 + start_3 * 16 + (tap % 3) * 16 + channel + place_1]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  *(float4 *)(&b_next[0]) = *(const float4 *)(&weights[group_z * 1536 + place_2 * 32 + at_2]);
  *(float4 *)(&b_next[4]) = *(const float4 *)(&weights[group_z * 1536 + place_3 * 32 + at_3]);
  a[place * 20 + line] = a_next[0];
  a[place * 20 + line + 20] = a_next[1];
  a[place * 20 + line + 40] = a_next[2];
  a[place * 20 + line + 60] = a_next[3];
  a[place_1 * 20 + line_1] = a_next[4];
  a[place_1 * 20 + line_1 + 20] = a_next[5];
  a[place_1 * 20 + line_1 + 40] = a_next[6];
  a[place_1 * 20 + line_1 + 60] = a_next[7];
  *(float4 *)(&b[place_2 * 16 + line_2]) = *(const float4 *)(&b_next[0]);
  *(float4 *)(&b[place_3 * 16 + line_3]) = *(const float4 *)(&b_next[4]);
  __syncthreads();
  #pragma unroll 1
  for (int32_t step_1 = 0; step_1 < 5; ++step_1) {
    const int32_t tap_1 = (group_z * 6 + step_1 + 1) / 2;
    const int32_t channel_1 = (group_z * 6 + step_1 + 1) % 2 * 8;
    *(float4 *)(&a_next[0]) = start + tap_1 / 3 >= 0 && start + tap_1 / 3 < 6 && start_1 + tap_1 % 3 >= 0 && start_1 + tap_1 % 3 < 6 ? *(const float4 *)(&x[start * 96 + (tap_1 / 3) * 96 + start_1 * 16 + (tap_1 % 3) * 16 + channel_1 + place]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    *(float4 *)(&a_next[4]) = start_2 + tap_1 / 3 >= 0 && start_2 + tap_1 / 3 < 6 && start_3 + tap_1 % 3 >= 0 && start_3 + tap_1 % 3 < 6 ? *(const float4 *)(&x[start_2 * 96 + (tap_1 / 3) * 96 + start_3 * 16 + (tap_1 % 3) * 16 + channel_1 + place_1]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    *(float4 *)(&b_next[0]) = *(const float4 *)(&weights[group_z * 1536 + step_1 * 256 + place_2 * 32 + at_2 + 256]);
    *(float4 *)(&b_next[4]) = *(const float4 *)(&weights[group_z * 1536 + step_1 * 256 + place_3 * 32 + at_3 + 256]);
    for (int32_t k = 0; k < 8; ++k) {
      __align__(16) float left[4];
      __align__(16) float right[4];
      *(float4 *)(&left[0]) = *(const float4 *)(&a[k * 20 + y * 4]);
      *(float4 *)(&right[0]) = *(const float4 *)(&b[k * 16 + x_1 * 4]);
      #pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        #pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
          sums[i * 4 + j] += left[i] * right[j];
        }
      }
    }
    __syncthreads();
    a[place * 20 + line] = a_next[0];
    a[place * 20 + line + 20] = a_next[1];
    a[place * 20 + line + 40] = a_next[2];
    a[place * 20 + line + 60] = a_next[3];
    a[place_1 * 20 + line_1] = a_next[4];
    a[place_1 * 20 + line_1 + 20] = a_next[5];
    a[place_1 * 20 + line_1 + 40] = a_next[6];
    a[place_1 * 20 + line_1 + 60] = a_next[7];
    *(float4 *)(&b[place_2 * 16 + line_2]) = *(const float4 *)(&b_next[0]);
    *(float4 *)(&b[place_3 * 16 + line_3]) = *(const float4 *)(&b_next[4]);
    __syncthreads();
  }
  for (int32_t k_1 = 0; k_1 < 8; ++k_1) {
    __align__(16) float left_1[4];
    __align__(16) float right_1[4];
    *(float4 *)(&left_1[0]) = *(const float4 *)(&a[k_1 * 20 + y * 4]);
    *(float4 *)(&right_1[0]) = *(const float4 *)(&b[k_1 * 16 + x_1 * 4]);
    #pragma unroll
    for (int32_t i_1 = 0; i_1 < 4; ++i_1) {
      #pragma unroll
      for (int32_t j_1 = 0; j_1 < 4; ++j_1) {
        sums[i_1 * 4 + j_1] += left_1[i_1] * right_1[j_1];
      }
    }
  }
  #pragma unroll
  for (int32_t i_2 = 0; i_2 < 4; ++i_2) {
    const int32_t r = row + y * 4 + i_2;
    if (r < 36) {
      #pragma unroll
      for (int32_t j_2 = 0; j_2 < 4; ++j_2) {
        const int32_t c = column + x_1 * 4 + j_2;
        if (c < 20) {
          parts[group_z * 720 + r * 20 + c] = sums[i_2 * 4 + j_2];
        }
      }
    }
  }
}


extern "C" __global__ void __launch_bounds__(256)
convolution_kernel_1(float *__restrict__ output, const float *__restrict__ parts) {
  const int32_t group_x_1 = (int32_t)blockIdx.x;
  const int32_t item_x_1 = (int32_t)threadIdx.x;
  const int32_t number = group_x_1 * 256 + item_x_1;
  if (number < 720) {
    const int32_t at_4 = number / 20;
    const int32_t at_5 = number % 20;
    __align__(16) float total[1];
    total[0] = 0.0f;
    for (int32_t part = 0; part < 3; ++part) {
      total[0] += parts[part * 720 + at_4 * 20 + at_5];
    }
    const float value = total[0];
    output[(at_4 / 6) * 120 + (at_4 % 6) * 20 + at_5] = mlf_max_f32(0.0f, value);
  }
}
