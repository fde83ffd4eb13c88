#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float mlf_f32x16 __attribute__((vector_size(64)));
typedef float mlf_f32x16_u __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t mlf_i32x16 __attribute__((vector_size(64)));
typedef int32_t mlf_i32x16_u __attribute__((vector_size(64), aligned(4), may_alias));

#define mlf_max_f32x16(a, b) __extension__({ \
  const mlf_f32x16 mlf_a = (a), mlf_b = (b); \
  const mlf_i32x16 mlf_mask = (mlf_i32x16)(mlf_a > mlf_b); \
  (mlf_f32x16)(((mlf_i32x16)mlf_a & mlf_mask) | ((mlf_i32x16)mlf_b & ~mlf_mask)); })

#define mlf_min_f32x16(a, b) __extension__({ \
  const mlf_f32x16 mlf_a = (a), mlf_b = (b); \
  const mlf_i32x16 mlf_mask = (mlf_i32x16)(mlf_a < mlf_b); \
  (mlf_f32x16)(((mlf_i32x16)mlf_a & mlf_mask) | ((mlf_i32x16)mlf_b & ~mlf_mask)); })

int32_t product_16(const float *restrict data, const float *restrict weights, float *restrict output) {
  mlf_f32x16 sums[6];
  sums[0] = (mlf_f32x16){0};
  sums[1] = (mlf_f32x16){0};
  sums[2] = (mlf_f32x16){0};
  sums[3] = (mlf_f32x16){0};
  sums[4] = (mlf_f32x16){0};
  sums[5] = (mlf_f32x16){0};
  for (int32_t k = 0; k < 7; ++k) {
    const mlf_f32x16 w = *(const mlf_f32x16_u *)&weights[k * 32];
    sums[0] = sums[0] + data[k] * w;
    sums[2] = sums[2] + data[k + 7] * w;
    sums[4] = sums[4] + data[k + 14] * w;
    const mlf_f32x16 w_1 = *(const mlf_f32x16_u *)&weights[k * 32 + 16];
    sums[1] = sums[1] + data[k] * w_1;
    sums[3] = sums[3] + data[k + 7] * w_1;
    sums[5] = sums[5] + data[k + 14] * w_1;
  }
  *(mlf_f32x16_u *)&output[0] = mlf_min_f32x16(mlf_max_f32x16(sums[0], (-1.0f) - (mlf_f32x16){0}), 6.0f - (mlf_f32x16){0});
  *(mlf_f32x16_u *)&output[16] = mlf_min_f32x16(mlf_max_f32x16(sums[1], (-1.0f) - (mlf_f32x16){0}), 6.0f - (mlf_f32x16){0});
  *(mlf_f32x16_u *)&output[32] = mlf_min_f32x16(mlf_max_f32x16(sums[2], (-1.0f) - (mlf_f32x16){0}), 6.0f - (mlf_f32x16){0});
  *(mlf_f32x16_u *)&output[48] = mlf_min_f32x16(mlf_max_f32x16(sums[3], (-1.0f) - (mlf_f32x16){0}), 6.0f - (mlf_f32x16){0});
  *(mlf_f32x16_u *)&output[64] = mlf_min_f32x16(mlf_max_f32x16(sums[4], (-1.0f) - (mlf_f32x16){0}), 6.0f - (mlf_f32x16){0});
  *(mlf_f32x16_u *)&output[80] = mlf_min_f32x16(mlf_max_f32x16(sums[5], (-1.0f) - (mlf_f32x16){0}), 6.0f - (mlf_f32x16){0});
  return 0;
}
