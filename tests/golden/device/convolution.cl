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

static inline int32_t mlf_min_i32(int32_t a, int32_t b) {
  return a < b ? a : b;
}

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void convolution_kernel(__global const float *restrict x, __global const float *restrict weights, __global float *restrict parts) {
  const int32_t group_x = (int32_t)get_group_id(0);
  const int32_t group_y = (int32_t)get_group_id(1);
  const int32_t group_z = (int32_t)get_group_id(2);
  const int32_t item_x = (int32_t)get_local_id(0);
  __local float a[160];
  __local float b[128];
  const int32_t x_1 = item_x % 4;
  const int32_t y = item_x / 4;
  const int32_t row = group_y * 16;
  const int32_t column = group_x * 16;
  float a_next[8];
  float b_next[8];
  float sums[16];
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
  vstore4(start + tap / 3 >= 0 && start + tap / 3 < 6 && start_1 + tap % 3 >= 0 && start_1 + tap % 3 < 6 ? vload4(0, &x[start * 96 + (tap / 3) * 96 + start_1 * 16 + (tap % 3) * 16 + channel + place]) : (float4)(0.0f), 0, &a_next[0]);
  vstore4(start_2 + tap / 3 >= 0 && start_2 + tap / 3 < 6 && start_3 + tap % 3 >= 0 && start_3 + tap % 3 < 6 ? vload4(0, &x[start_2 * 96 + (tap / 3) * 96 + start_3 * 16 + (tap % 3) * 16 + channel + place_1]) : (float4)(0.0f), 0, &a_next[4]);
  vstore4(vload4(0, &weights[group_z * 1536 + place_2 * 32 + at_2]), 0, &b_next[0]);
  vstore4(vload4(0, &weights[group_z * 1536 + place_3 * 32 + at_3]), 0, &b_next[4]);
  a[place * 20 + line] = a_next[0];
  a[place * 20 + line + 20] = a_next[1];
  a[place * 20 + line + 40] = a_next[2];
  a[place * 20 + line + 60] = a_next[3];
  a[place_1 * 20 + line_1] = a_next[4];
  a[place_1 * 20 + line_1 + 20] = a_next[5];
  a[place_1 * 20 + line_1 + 40] = a_next[6];
  a[place_1 * 20 + line_1 + 60] = a_next[7];
  vstore4(vload4(0, &b_next[0]), 0, &b[place_2 * 16 + line_2]);
  vstore4(vload4(0, &b_next[4]), 0, &b[place_3 * 16 + line_3]);
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll 1
  for (int32_t step_1 = 0; step_1 < 5; ++step_1) {
    const int32_t tap_1 = (group_z * 6 + step_1 + 1) / 2;
    const int32_t channel_1 = (group_z * 6 + step_1 + 1) % 2 * 8;
    vstore4(start + tap_1 / 3 >= 0 && start + tap_1 / 3 < 6 && start_1 + tap_1 % 3 >= 0 && start_1 + tap_1 % 3 < 6 ? vload4(0, &x[start * 96 + (tap_1 / 3) * 96 + start_1 * 16 + (tap_1 % 3) * 16 + channel_1 + place]) : (float4)(0.0f), 0, &a_next[0]);
    vstore4(start_2 + tap_1 / 3 >= 0 && start_2 + tap_1 / 3 < 6 && start_3 + tap_1 % 3 >= 0 && start_3 + tap_1 % 3 < 6 ? vload4(0, &x[start_2 * 96 + (tap_1 / 3) * 96 + start_3 * 16 + (tap_1 % 3) * 16 + channel_1 + place_1]) : (float4)(0.0f), 0, &a_next[4]);
    vstore4(vload4(0, &weights[group_z * 1536 + step_1 * 256 + place_2 * 32 + at_2 + 256]), 0, &b_next[0]);
    vstore4(vload4(0, &weights[group_z * 1536 + step_1 * 256 + place_3 * 32 + at_3 + 256]), 0, &b_next[4]);
    for (int32_t k = 0; k < 8; ++k) {
      float left[4];
      float right[4];
      vstore4(vload4(0, &a[k * 20 + y * 4]), 0, &left[0]);
      vstore4(vload4(0, &b[k * 16 + x_1 * 4]), 0, &right[0]);
      for (int32_t i = 0; i < 4; ++i) {
        for (int32_t j = 0; j < 4; ++j) {
          sums[i * 4 + j] += left[i] * right[j];
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    a[place * 20 + line] = a_next[0];
    a[place * 20 + line + 20] = a_next[1];
    a[place * 20 + line + 40] = a_next[2];
    a[place * 20 + line + 60] = a_next[3];
    a[place_1 * 20 + line_1] = a_next[4];
    a[place_1 * 20 + line_1 + 20] = a_next[5];
    a[place_1 * 20 + line_1 + 40] = a_next[6];
    a[place_1 * 20 + line_1 + 60] = a_next[7];
    vstore4(vload4(0, &b_next[0]), 0, &b[place_2 * 16 + line_2]);
    vstore4(vload4(0, &b_next[4]), 0, &b[place_3 * 16 + line_3]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int32_t k_1 = 0; k_1 < 8; ++k_1) {
    float left_1[4];
    float right_1[4];
    vstore4(vload4(0, &a[k_1 * 20 + y * 4]), 0, &left_1[0]);
    vstore4(vload4(0, &b[k_1 * 16 + x_1 * 4]), 0, &right_1[0]);
    for (int32_t i_1 = 0; i_1 < 4; ++i_1) {
      for (int32_t j_1 = 0; j_1 < 4; ++j_1) {
        sums[i_1 * 4 + j_1] += left_1[i_1] * right_1[j_1];
      }
    }
  }
  for (int32_t i_2 = 0; i_2 < 4; ++i_2) {
    const int32_t r = row + y * 4 + i_2;
    if (r < 36) {
      for (int32_t j_2 = 0; j_2 < 4; ++j_2) {
        const int32_t c = column + x_1 * 4 + j_2;
        if (c < 20) {
          parts[group_z * 720 + r * 20 + c] = sums[i_2 * 4 + j_2];
        }
      }
    }
  }
}
// Function: convolution_kernel_1
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

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void convolution_kernel_1(__global float *restrict output, __global const float *restrict parts) {
  const int32_t group_x_1 = (int32_t)get_group_id(0);
  const int32_t item_x_1 = (int32_t)get_local_id(0);
  const int32_t number = group_x_1 * 256 + item_x_1;
  if (number < 720) {
    const int32_t at_4 = number / 20;
    const int32_t at_5 = number % 20;
    float total[1];
    total[0] = 0.0f;
    for (int32_t part = 0; part < 3; ++part) {
      total[0] += parts[part * 720 + at_4 * 20 + at_5];
    }
    const float value = total[0];
    output[(at_4 / 6) * 120 + (at_4 % 6) * 20 + at_5] = mlf_max_f32(0.0f, value);
  }
}
