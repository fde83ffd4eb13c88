#include <stdint.h>
#include <string.h>

/* 0 for compilers without GNU C's vectors, for which each lane of a vector is a scalar */
#if defined(__GNUC__) && !defined(__TINYC__) && !defined(__PCC__)
#define MLF_VECTORS 1
#else
#define MLF_VECTORS 0
#endif

#if MLF_VECTORS
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#if defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS > 0
#include <arm_sve.h>
#endif
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
typedef int32_t mlf_i32x16_part __attribute__((vector_size(64 / MLF_PARTS)));
typedef int32_t mlf_i32x16_u __attribute__((vector_size(64 / MLF_PARTS), aligned(4), may_alias));
typedef int8_t mlf_i8x64_part __attribute__((vector_size(64 / MLF_PARTS)));
typedef int8_t mlf_i8x64_u __attribute__((vector_size(64 / MLF_PARTS), aligned(1), may_alias));
typedef char mlf_has_vectors[sizeof(mlf_i32x16_part) == 64 / MLF_PARTS ? 1 : -1];
#else
typedef struct { uint8_t byte[4]; } mlf_bytes;
typedef int32_t mlf_i32x16_part;
typedef int32_t mlf_i32x16_u;
typedef mlf_bytes mlf_i8x64_part;
typedef mlf_bytes mlf_i8x64_u;
#endif
typedef mlf_i32x16_part mlf_i32x16[MLF_PARTS];
typedef mlf_i8x64_part mlf_i8x64[MLF_PARTS];

#if !MLF_VECTORS
static inline int32_t mlf_dot4_u8s8x16(int32_t sum, mlf_bytes a, mlf_bytes b) {
  uint32_t total = (uint32_t)sum;
  for (int32_t i = 0; i < 4; ++i) {
    total += (uint32_t)((int32_t)a.byte[i] * (int8_t)b.byte[i]);
  }
  return (int32_t)total;
}
#elif defined(__AVX512VNNI__) && MLF_PARTS == 1
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  mlf_sum = (mlf_i32x16_part)_mm512_dpbusd_epi32((__m512i)mlf_sum, (__m512i)mlf_a, (__m512i)mlf_b); \
  mlf_sum; })
#elif defined(__AVX512BW__) && MLF_PARTS == 1
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  const __m512i mlf_low = _mm512_set1_epi16(255); \
  const __m512i mlf_a_even = _mm512_and_si512((__m512i)mlf_a, mlf_low); \
  const __m512i mlf_a_odd = _mm512_srli_epi16((__m512i)mlf_a, 8); \
  const __m512i mlf_b_even = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)mlf_b, 8), 8); \
  const __m512i mlf_b_odd = _mm512_srai_epi16((__m512i)mlf_b, 8); \
  mlf_sum += (mlf_i32x16_part)_mm512_madd_epi16(mlf_a_even, mlf_b_even); \
  mlf_sum += (mlf_i32x16_part)_mm512_madd_epi16(mlf_a_odd, mlf_b_odd); \
  mlf_sum; })
#elif defined(__AVXVNNI__) && MLF_PARTS == 2
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  mlf_sum = (mlf_i32x16_part)_mm256_dpbusd_avx_epi32((__m256i)mlf_sum, (__m256i)mlf_a, (__m256i)mlf_b); \
  mlf_sum; })
#elif defined(__AVX2__) && MLF_PARTS == 2
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  const __m256i mlf_low = _mm256_set1_epi16(255); \
  const __m256i mlf_a_even = _mm256_and_si256((__m256i)mlf_a, mlf_low); \
  const __m256i mlf_a_odd = _mm256_srli_epi16((__m256i)mlf_a, 8); \
  const __m256i mlf_b_even = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)mlf_b, 8), 8); \
  const __m256i mlf_b_odd = _mm256_srai_epi16((__m256i)mlf_b, 8); \
  mlf_sum += (mlf_i32x16_part)_mm256_madd_epi16(mlf_a_even, mlf_b_even); \
  mlf_sum += (mlf_i32x16_part)_mm256_madd_epi16(mlf_a_odd, mlf_b_odd); \
  mlf_sum; })
#elif defined(__SSE2__) && MLF_PARTS == 4
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  const __m128i mlf_low = _mm_set1_epi16(255); \
  const __m128i mlf_a_even = _mm_and_si128((__m128i)mlf_a, mlf_low); \
  const __m128i mlf_a_odd = _mm_srli_epi16((__m128i)mlf_a, 8); \
  const __m128i mlf_b_even = _mm_srai_epi16(_mm_slli_epi16((__m128i)mlf_b, 8), 8); \
  const __m128i mlf_b_odd = _mm_srai_epi16((__m128i)mlf_b, 8); \
  mlf_sum += (mlf_i32x16_part)_mm_madd_epi16(mlf_a_even, mlf_b_even); \
  mlf_sum += (mlf_i32x16_part)_mm_madd_epi16(mlf_a_odd, mlf_b_odd); \
  mlf_sum; })
#elif defined(__ARM_FEATURE_MATMUL_INT8) && MLF_PARTS == 4
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  mlf_sum = (mlf_i32x16_part)vusdotq_s32((int32x4_t)mlf_sum, (uint8x16_t)mlf_a, (int8x16_t)mlf_b); \
  mlf_sum; })
#elif defined(__ARM_FEATURE_DOTPROD) && MLF_PARTS == 4
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  const int8x16_t mlf_half = vdupq_n_s8(64), mlf_signed = (int8x16_t)(mlf_a ^ (int32_t)0x80808080); \
  int32x4_t mlf_rest = vdotq_s32(vdupq_n_s32(0), mlf_half, (int8x16_t)mlf_b); \
  mlf_rest = vdotq_s32(mlf_rest, mlf_half, (int8x16_t)mlf_b); \
  mlf_sum = (mlf_i32x16_part)vdotq_s32((int32x4_t)mlf_sum + mlf_rest, mlf_signed, (int8x16_t)mlf_b); \
  mlf_sum; })
#elif defined(__ARM_NEON) && MLF_PARTS == 4
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  const int16x8_t mlf_even = (int16x8_t)(mlf_a & 0x00ff00ff); \
  const int16x8_t mlf_odd = (int16x8_t)vshrq_n_u16((uint16x8_t)mlf_a, 8); \
  const int16x8_t mlf_b_even = vshrq_n_s16(vshlq_n_s16((int16x8_t)mlf_b, 8), 8); \
  const int16x8_t mlf_b_odd = vshrq_n_s16((int16x8_t)mlf_b, 8); \
  int32x4_t mlf_total = vpadalq_s16((int32x4_t)mlf_sum, vmulq_s16(mlf_even, mlf_b_even)); \
  mlf_total = vpadalq_s16(mlf_total, vmulq_s16(mlf_odd, mlf_b_odd)); \
  mlf_sum = (mlf_i32x16_part)mlf_total; \
  mlf_sum; })
#elif defined(__ARM_FEATURE_SVE_MATMUL_INT8) && MLF_PARTS * __ARM_FEATURE_SVE_BITS == 512
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  typedef svint32_t mlf_words __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS))); \
  typedef svint8_t mlf_bytes __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS))); \
  typedef svuint8_t mlf_codes __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS))); \
  mlf_sum = (mlf_i32x16_part)(mlf_words)svusdot_s32((mlf_words)mlf_sum, (mlf_codes)mlf_a, (mlf_bytes)mlf_b); \
  mlf_sum; })
#elif defined(__ARM_FEATURE_SVE) && MLF_PARTS * __ARM_FEATURE_SVE_BITS == 512
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  typedef svint32_t mlf_words __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS))); \
  typedef svint8_t mlf_bytes __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS))); \
  const svint8_t mlf_half = svdup_n_s8(64), mlf_factor = (mlf_bytes)mlf_b; \
  const mlf_i32x16_part mlf_signed = mlf_a ^ (int32_t)0x80808080; \
  mlf_words mlf_total = svdot_s32((mlf_words)mlf_sum, mlf_half, mlf_factor); \
  mlf_total = svdot_s32(mlf_total, mlf_half, mlf_factor); \
  mlf_sum = (mlf_i32x16_part)(mlf_words)svdot_s32(mlf_total, (mlf_bytes)mlf_signed, mlf_factor); \
  mlf_sum; })
#else
#define mlf_dot4_u8s8x16(sum, a, b) __extension__({ \
  mlf_i32x16_part mlf_sum = (sum); \
  const mlf_i32x16_part mlf_a = (mlf_i32x16_part)(a), mlf_b = (mlf_i32x16_part)(b); \
  mlf_sum += (mlf_a & 255) * ((mlf_b << 24) >> 24) + ((mlf_a >> 8) & 255) * ((mlf_b << 16) >> 24); \
  mlf_sum += ((mlf_a >> 16) & 255) * ((mlf_b << 8) >> 24) + ((mlf_a >> 24) & 255) * (mlf_b >> 24); \
  mlf_sum; })
#endif

/* four bytes in memory, as the bits of one number */
static inline int32_t mlf_group(const void *place) {
  int32_t bits;
  memcpy(&bits, place, sizeof bits);
  return bits;
}

#if MLF_VECTORS
#define mlf_splat_i32x16(x) ((int32_t)(x) - (mlf_i32x16_part){0})
#else
#define mlf_splat_i32x16(x) ((mlf_i32x16_part)(x))
#endif

#if MLF_VECTORS
#define mlf_spread_i32x16(word) mlf_splat_i32x16(word)
#else
static inline mlf_bytes mlf_spread_i32x16(int32_t word) {
  mlf_bytes bytes;
  memcpy(&bytes, &word, sizeof bytes);
  return bytes;
}
#endif

int32_t dot_broadcast_16(const uint8_t *restrict a, const int8_t *restrict w, int32_t *restrict output) {
  mlf_i32x16 total[1];
  MLF_EACH(q) total[0][q] = mlf_splat_i32x16((-5));
  for (int32_t k = 0; k < 3; ++k) {
    MLF_EACH(q) total[0][q] = mlf_dot4_u8s8x16(total[0][q], mlf_spread_i32x16(mlf_group(&a[k * 4])), ((const mlf_i8x64_u *)&w[k * 64])[q]);
  }
  MLF_EACH(q) ((mlf_i32x16_u *)&output[0])[q] = total[0][q];
  return 0;
}
