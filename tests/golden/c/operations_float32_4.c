#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float mlf_f32x4 __attribute__((vector_size(16)));
typedef float mlf_f32x4_u __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t mlf_i32x4 __attribute__((vector_size(16)));
typedef int32_t mlf_i32x4_u __attribute__((vector_size(16), aligned(4), may_alias));

#define mlf_max_f32x4(a, b) __extension__({ \
  const mlf_f32x4 mlf_a = (a), mlf_b = (b); \
  const mlf_i32x4 mlf_mask = (mlf_i32x4)(mlf_a > mlf_b); \
  (mlf_f32x4)(((mlf_i32x4)mlf_a & mlf_mask) | ((mlf_i32x4)mlf_b & ~mlf_mask)); })

#define mlf_min_f32x4(a, b) __extension__({ \
  const mlf_f32x4 mlf_a = (a), mlf_b = (b); \
  const mlf_i32x4 mlf_mask = (mlf_i32x4)(mlf_a < mlf_b); \
  (mlf_f32x4)(((mlf_i32x4)mlf_a & mlf_mask) | ((mlf_i32x4)mlf_b & ~mlf_mask)); })

#define mlf_select_f32x4(mask, a, b) __extension__({ \
  const mlf_f32x4 mlf_a = (a), mlf_b = (b); \
  const mlf_i32x4 mlf_mask = (mask); \
  (mlf_f32x4)(((mlf_i32x4)mlf_a & mlf_mask) | ((mlf_i32x4)mlf_b & ~mlf_mask)); })

int32_t operations_float32_4(const float *restrict x, const float *restrict y, float *restrict output) {
  const mlf_f32x4 x_1 = *(const mlf_f32x4_u *)&x[0];
  const mlf_f32x4 y_1 = *(const mlf_f32x4_u *)&y[0];
  *(mlf_f32x4_u *)&output[0] = x_1 + y_1;
  *(mlf_f32x4_u *)&output[4] = x_1 - 1.0f;
  *(mlf_f32x4_u *)&output[8] = mlf_min_f32x4(x_1, y_1);
  *(mlf_f32x4_u *)&output[12] = mlf_max_f32x4(x_1, 3.0f - (mlf_f32x4){0});
  *(mlf_f32x4_u *)&output[16] = mlf_select_f32x4(x_1 > (mlf_f32x4){0}, x_1, y_1);
  *(mlf_f32x4_u *)&output[20] = x_1 * y_1;
  return 0;
}
