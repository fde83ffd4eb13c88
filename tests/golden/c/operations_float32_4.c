#include <math.h>
#include <stdint.h>
#include <string.h>

/* 0 for compilers without GNU C's vectors, for which each lane of a vector is a scalar */
#if defined(__GNUC__) && !defined(__TINYC__) && !defined(__PCC__)
#define MLF_VECTORS 1
#else
#define MLF_VECTORS 0
#endif

/* a vector of 16 bytes is MLF_PARTS machine vectors; MLF_EACH(q) repeats a statement for each part q */
#if !MLF_VECTORS
#define MLF_PARTS 4
#else
#define MLF_PARTS 1
#endif
#if MLF_PARTS == 1
enum { q };
#define MLF_EACH(q)
#else
#define MLF_EACH(q) for (int32_t q = 0; q < MLF_PARTS; ++q)
#endif

#if MLF_VECTORS
typedef float mlf_f32x4_part __attribute__((vector_size(16 / MLF_PARTS)));
typedef float mlf_f32x4_u __attribute__((vector_size(16 / MLF_PARTS), aligned(4), may_alias));
typedef int32_t mlf_i32x4_part __attribute__((vector_size(16 / MLF_PARTS)));
typedef int32_t mlf_i32x4_u __attribute__((vector_size(16 / MLF_PARTS), aligned(4), may_alias));
typedef char mlf_has_vectors[sizeof(mlf_f32x4_part) == 16 / MLF_PARTS ? 1 : -1];
#else
typedef float mlf_f32x4_part;
typedef float mlf_f32x4_u;
typedef int32_t mlf_i32x4_part;
typedef int32_t mlf_i32x4_u;
#endif
typedef mlf_f32x4_part mlf_f32x4[MLF_PARTS];
typedef mlf_i32x4_part mlf_i32x4[MLF_PARTS];

#if MLF_VECTORS
#define mlf_max_f32x4(a, b) __extension__({ \
  const mlf_f32x4_part mlf_a = (a), mlf_b = (b); \
  const mlf_i32x4_part mlf_mask = (mlf_i32x4_part)(mlf_a > mlf_b); \
  (mlf_f32x4_part)(((mlf_i32x4_part)mlf_a & mlf_mask) | ((mlf_i32x4_part)mlf_b & ~mlf_mask)); })
#else
static inline mlf_f32x4_part mlf_max_f32x4(mlf_f32x4_part a, mlf_f32x4_part b) {
  return a > b ? a : b;
}
#endif

#if MLF_VECTORS
#define mlf_min_f32x4(a, b) __extension__({ \
  const mlf_f32x4_part mlf_a = (a), mlf_b = (b); \
  const mlf_i32x4_part mlf_mask = (mlf_i32x4_part)(mlf_a < mlf_b); \
  (mlf_f32x4_part)(((mlf_i32x4_part)mlf_a & mlf_mask) | ((mlf_i32x4_part)mlf_b & ~mlf_mask)); })
#else
static inline mlf_f32x4_part mlf_min_f32x4(mlf_f32x4_part a, mlf_f32x4_part b) {
  return a < b ? a : b;
}
#endif

#if MLF_VECTORS
#define mlf_select_f32x4(mask, a, b) __extension__({ \
  const mlf_f32x4_part mlf_a = (a), mlf_b = (b); \
  const mlf_i32x4_part mlf_mask = (mask); \
  (mlf_f32x4_part)(((mlf_i32x4_part)mlf_a & mlf_mask) | ((mlf_i32x4_part)mlf_b & ~mlf_mask)); })
#else
#define mlf_select_f32x4(mask, a, b) ((mask) ? (a) : (b))
#endif

#if MLF_VECTORS
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#define mlf_splat_f32x4(x) __extension__({ \
  const float mlf_x = (x); \
  int32_t mlf_bits; \
  memcpy(&mlf_bits, &mlf_x, sizeof mlf_bits); \
  (mlf_f32x4_part)(mlf_bits - (mlf_i32x4_part){0}); })
#else
#define mlf_splat_f32x4(x) ((float)(x) - (mlf_f32x4_part){0})
#endif
#else
#define mlf_splat_f32x4(x) ((mlf_f32x4_part)(x))
#endif

int32_t operations_float32_4(const float *restrict x, const float *restrict y, float *restrict output) {
  mlf_f32x4 x_1;
  MLF_EACH(q) x_1[q] = ((const mlf_f32x4_u *)&x[0])[q];
  mlf_f32x4 y_1;
  MLF_EACH(q) y_1[q] = ((const mlf_f32x4_u *)&y[0])[q];
  MLF_EACH(q) ((mlf_f32x4_u *)&output[0])[q] = x_1[q] + y_1[q];
  MLF_EACH(q) ((mlf_f32x4_u *)&output[4])[q] = x_1[q] - mlf_splat_f32x4(1.0f);
  MLF_EACH(q) ((mlf_f32x4_u *)&output[8])[q] = mlf_min_f32x4(x_1[q], y_1[q]);
  MLF_EACH(q) ((mlf_f32x4_u *)&output[12])[q] = mlf_max_f32x4(x_1[q], mlf_splat_f32x4(3.0f));
  MLF_EACH(q) ((mlf_f32x4_u *)&output[16])[q] = mlf_select_f32x4(x_1[q] > (mlf_f32x4_part){0}, x_1[q], y_1[q]);
  MLF_EACH(q) ((mlf_f32x4_u *)&output[20])[q] = x_1[q] * y_1[q];
  return 0;
}
