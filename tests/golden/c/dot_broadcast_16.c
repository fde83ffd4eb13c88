#include <stdint.h>
#include <string.h>

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#include <immintrin.h>
#endif
typedef int32_t mlf_i32x16 __attribute__((vector_size(64)));
typedef int32_t mlf_i32x16_u __attribute__((vector_size(64), aligned(4), may_alias));
typedef int8_t mlf_i8x64 __attribute__((vector_size(64)));
typedef int8_t mlf_i8x64_u __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint8_t mlf_u8x4 __attribute__((vector_size(4)));
typedef uint8_t mlf_u8x4_u __attribute__((vector_size(4), aligned(1), may_alias));

#if defined(__AVX512VNNI__)
#define mlf_dot4_u8s8x16_broadcast(sum, a, b) __extension__({ \
  mlf_i32x16 mlf_sum = (sum); \
  const mlf_u8x4 mlf_a = (a); \
  const mlf_i8x64 mlf_b = (b); \
  int32_t mlf_group; \
  memcpy(&mlf_group, &mlf_a, sizeof mlf_group); \
  mlf_sum = (mlf_i32x16)_mm512_dpbusd_epi32((__m512i)mlf_sum, (__m512i)(mlf_group - (mlf_i32x16){0}), (__m512i)mlf_b); \
  mlf_sum; })
#else
#define mlf_dot4_u8s8x16_broadcast(sum, a, b) __extension__({ \
  mlf_i32x16 mlf_sum = (sum); \
  const mlf_u8x4 mlf_a = (a); \
  const mlf_i8x64 mlf_b = (b); \
  for (int32_t mlf_i = 0; mlf_i < 16; ++mlf_i) { \
    mlf_sum[mlf_i] += mlf_a[0] * mlf_b[4 * mlf_i] + mlf_a[1] * mlf_b[4 * mlf_i + 1] + mlf_a[2] * mlf_b[4 * mlf_i + 2] + mlf_a[3] * mlf_b[4 * mlf_i + 3]; \
  } \
  mlf_sum; })
#endif

int32_t dot_broadcast_16(const uint8_t *restrict a, const int8_t *restrict w, int32_t *restrict output) {
  mlf_i32x16 total[1];
  total[0] = (-5) - (mlf_i32x16){0};
  for (int32_t k = 0; k < 3; ++k) {
    total[0] = mlf_dot4_u8s8x16_broadcast(total[0], *(const mlf_u8x4_u *)&a[k * 4], *(const mlf_i8x64_u *)&w[k * 64]);
  }
  *(mlf_i32x16_u *)&output[0] = total[0];
  return 0;
}
