#include <math.h>
#include <stdint.h>
#include <string.h>

/* 0 for compilers without GNU C's vectors, for which each lane of a vector is a scalar */
#if defined(__GNUC__) && !defined(__TINYC__) && !defined(__PCC__)
#define MLF_VECTORS 1
#else
#define MLF_VECTORS 0
#endif

/* a vector of 64 bytes is MLF_PARTS machine vectors; MLF_EACH(q) repeats a statement for each part q */
#if !MLF_VECTORS
#define MLF_PARTS 16
#elif defined(__AVX512F__)
#define MLF_PARTS 1
#elif defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS == 512
#define MLF_PARTS 1
#elif defined(__AVX__)
#define MLF_PARTS 2
#elif defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS == 256
#define MLF_PARTS 2
#else
#define MLF_PARTS 4
#endif
#if MLF_PARTS == 1
enum { q };
#define MLF_EACH(q)
#else
#define MLF_EACH(q) for (int32_t q = 0; q < MLF_PARTS; ++q)
#endif

#if MLF_VECTORS
typedef float mlf_f32x16_part __attribute__((vector_size(64 / MLF_PARTS)));
typedef float mlf_f32x16_u __attribute__((vector_size(64 / MLF_PARTS), aligned(4), may_alias));
typedef int32_t mlf_i32x16_part __attribute__((vector_size(64 / MLF_PARTS)));
typedef int32_t mlf_i32x16_u __attribute__((vector_size(64 / MLF_PARTS), aligned(4), may_alias));
typedef char mlf_has_vectors[sizeof(mlf_f32x16_part) == 64 / MLF_PARTS ? 1 : -1];
#else
typedef float mlf_f32x16_part;
typedef float mlf_f32x16_u;
typedef int32_t mlf_i32x16_part;
typedef int32_t mlf_i32x16_u;
#endif
typedef mlf_f32x16_part mlf_f32x16[MLF_PARTS];
typedef mlf_i32x16_part mlf_i32x16[MLF_PARTS];

#if MLF_VECTORS
#define mlf_max_f32x16(a, b) __extension__({ \
  const mlf_f32x16_part mlf_a = (a), mlf_b = (b); \
  const mlf_i32x16_part mlf_mask = (mlf_i32x16_part)(mlf_a > mlf_b); \
  (mlf_f32x16_part)(((mlf_i32x16_part)mlf_a & mlf_mask) | ((mlf_i32x16_part)mlf_b & ~mlf_mask)); })
#else
static inline mlf_f32x16_part mlf_max_f32x16(mlf_f32x16_part a, mlf_f32x16_part b) {
  return a > b ? a : b;
}
#endif

#if MLF_VECTORS
#define mlf_min_f32x16(a, b) __extension__({ \
  const mlf_f32x16_part mlf_a = (a), mlf_b = (b); \
  const mlf_i32x16_part mlf_mask = (mlf_i32x16_part)(mlf_a < mlf_b); \
  (mlf_f32x16_part)(((mlf_i32x16_part)mlf_a & mlf_mask) | ((mlf_i32x16_part)mlf_b & ~mlf_mask)); })
#else
static inline mlf_f32x16_part mlf_min_f32x16(mlf_f32x16_part a, mlf_f32x16_part b) {
  return a < b ? a : b;
}
#endif

#if MLF_VECTORS
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#define mlf_splat_f32x16(x) __extension__({ \
  const float mlf_x = (x); \
  int32_t mlf_bits; \
  memcpy(&mlf_bits, &mlf_x, sizeof mlf_bits); \
  (mlf_f32x16_part)(mlf_bits - (mlf_i32x16_part){0}); })
#else
#define mlf_splat_f32x16(x) ((float)(x) - (mlf_f32x16_part){0})
#endif
#else
#define mlf_splat_f32x16(x) ((mlf_f32x16_part)(x))
#endif

int32_t product_16(const float *restrict data, const float *restrict weights, float *restrict output) {
  mlf_f32x16 sums[6];
  MLF_EACH(q) sums[0][q] = (mlf_f32x16_part){0};
  MLF_EACH(q) sums[1][q] = (mlf_f32x16_part){0};
  MLF_EACH(q) sums[2][q] = (mlf_f32x16_part){0};
  MLF_EACH(q) sums[3][q] = (mlf_f32x16_part){0};
  MLF_EACH(q) sums[4][q] = (mlf_f32x16_part){0};
  MLF_EACH(q) sums[5][q] = (mlf_f32x16_part){0};
  for (int32_t k = 0; k < 7; ++k) {
    mlf_f32x16 w;
    MLF_EACH(q) w[q] = ((const mlf_f32x16_u *)&weights[k * 32])[q];
    MLF_EACH(q) sums[0][q] += mlf_splat_f32x16(data[k]) * w[q];
    MLF_EACH(q) sums[2][q] += mlf_splat_f32x16(data[k + 7]) * w[q];
    MLF_EACH(q) sums[4][q] += mlf_splat_f32x16(data[k + 14]) * w[q];
    mlf_f32x16 w_1;
    MLF_EACH(q) w_1[q] = ((const mlf_f32x16_u *)&weights[k * 32 + 16])[q];
    MLF_EACH(q) sums[1][q] += mlf_splat_f32x16(data[k]) * w_1[q];
    MLF_EACH(q) sums[3][q] += mlf_splat_f32x16(data[k + 7]) * w_1[q];
    MLF_EACH(q) sums[5][q] += mlf_splat_f32x16(data[k + 14]) * w_1[q];
  }
  MLF_EACH(q) ((mlf_f32x16_u *)&output[0])[q] = mlf_min_f32x16(mlf_max_f32x16(sums[0][q], mlf_splat_f32x16((-1.0f))), mlf_splat_f32x16(6.0f));
  MLF_EACH(q) ((mlf_f32x16_u *)&output[16])[q] = mlf_min_f32x16(mlf_max_f32x16(sums[1][q], mlf_splat_f32x16((-1.0f))), mlf_splat_f32x16(6.0f));
  MLF_EACH(q) ((mlf_f32x16_u *)&output[32])[q] = mlf_min_f32x16(mlf_max_f32x16(sums[2][q], mlf_splat_f32x16((-1.0f))), mlf_splat_f32x16(6.0f));
  MLF_EACH(q) ((mlf_f32x16_u *)&output[48])[q] = mlf_min_f32x16(mlf_max_f32x16(sums[3][q], mlf_splat_f32x16((-1.0f))), mlf_splat_f32x16(6.0f));
  MLF_EACH(q) ((mlf_f32x16_u *)&output[64])[q] = mlf_min_f32x16(mlf_max_f32x16(sums[4][q], mlf_splat_f32x16((-1.0f))), mlf_splat_f32x16(6.0f));
  MLF_EACH(q) ((mlf_f32x16_u *)&output[80])[q] = mlf_min_f32x16(mlf_max_f32x16(sums[5][q], mlf_splat_f32x16((-1.0f))), mlf_splat_f32x16(6.0f));
  return 0;
}
