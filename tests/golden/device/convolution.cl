// Function: convolution_kernel
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MIN (-9223372036854775807L - 1)
#define INT64_C(x) x##L
#define UINT32_C(x) x##U
#define UINT64_C(x) x##UL

static inline float mlf_max_f32(float a, float b) {
  return a > b ? a : b;
}

static inline int32_t mlf_min_i32(int32_t a, int32_t b) {
  return a < b ? a : b;
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void convolution_kernel(__global const float *restrict x, __global const float *restrict weights, __global float *restrict output) {
  const int32_t group_x = (int32_t)get_group_id(0);
  const int32_t group_y = (int32_t)get_group_id(1);
  const int32_t item_x = (int32_t)get_local_id(0);
  __local float a[320];
  __local float b[256];
  const int32_t x_1 = item_x % 8;
  const int32_t y = item_x / 8;
  const int32_t row = group_y * 16;
  const int32_t column = group_x * 16;
  float a_next[4];
  float b_next[4];
  float sums[4];
  for (int32_t s = 0; s < 4; ++s) {
    sums[s] = 0.0f;
  }
  const int32_t line = item_x / 4;
  const int32_t place = item_x % 4 * 4;
  const int32_t at = row + line;
  const int32_t pixel = mlf_min_i32(at, 35);
  const int32_t start = pixel / 6 - 1;
  const int32_t start_1 = pixel % 6 - 1;
  const int32_t line_1 = item_x % 4 * 4;
  const int32_t place_1 = item_x / 4;
  const int32_t at_1 = column + line_1;
  vstore4(start >= 0 && start < 6 && start_1 >= 0 && start_1 < 6 ? vload4(0, &x[start * 96 + start_1 * 16 + place]) : (float4)(0.0f), 0, &a_next[0]);
  vstore4(vload4(0, &weights[place_1 * 32 + at_1]), 0, &b_next[0]);
  a[place * 20 + line] = a_next[0];
  a[place * 20 + line + 20] = a_next[1];
  a[place * 20 + line + 40] = a_next[2];
  a[place * 20 + line + 60] = a_next[3];
  vstore4(vload4(0, &b_next[0]), 0, &b[place_1 * 16 + line_1]);
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll 1
  for (int32_t step_1 = 0; step_1 < 8; ++step_1) {
    const int32_t tap = step_1 + 1;
    vstore4(start + tap / 3 >= 0 && start + tap / 3 < 6 && start_1 + tap % 3 >= 0 && start_1 + tap % 3 < 6 ? vload4(0, &x[start * 96 + (tap / 3) * 96 + start_1 * 16 + (tap % 3) * 16 + place]) : (float4)(0.0f), 0, &a_next[0]);
    vstore4(vload4(0, &weights[step_1 * 512 + place_1 * 32 + at_1 + 512]), 0, &b_next[0]);
    for (int32_t k = 0; k < 16; ++k) {
      float left[2];
      float right[2];
      vstore2(vload2(0, &a[k * 20 + y * 2]), 0, &left[0]);
      vstore2(vload2(0, &b[k * 16 + x_1 * 2]), 0, &right[0]);
      for (int32_t i = 0; i < 2; ++i) {
        for (int32_t j = 0; j < 2; ++j) {
          sums[i * 2 + j] += left[i] * right[j];
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    a[place * 20 + line] = a_next[0];
    a[place * 20 + line + 20] = a_next[1];
    a[place * 20 + line + 40] = a_next[2];
    a[place * 20 + line + 60] = a_next[3];
    vstore4(vload4(0, &b_next[0]), 0, &b[place_1 * 16 + line_1]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int32_t k_1 = 0; k_1 < 16; ++k_1) {
    float left_1[2];
    float right_1[2];
    vstore2(vload2(0, &a[k_1 * 20 + y * 2]), 0, &left_1[0]);
    vstore2(vload2(0, &b[k_1 * 16 + x_1 * 2]), 0, &right_1[0]);
    for (int32_t i_1 = 0; i_1 < 2; ++i_1) {
      for (int32_t j_1 = 0; j_1 < 2; ++j_1) {
        sums[i_1 * 2 + j_1] += left_1[i_1] * right_1[j_1];
      }
    }
  }
  for (int32_t i_2 = 0; i_2 < 2; ++i_2) {
    const int32_t r = row + y * 2 + i_2;
    if (r < 36) {
      for (int32_t j_2 = 0; j_2 < 2; ++j_2) {
        const int32_t c = column + x_1 * 2 + j_2;
        if (c < 20) {
          const float value = sums[i_2 * 2 + j_2];
          output[(r / 6) * 120 + (r % 6) * 20 + c] = mlf_max_f32(0.0f, value);
        }
      }
    }
  }
}
