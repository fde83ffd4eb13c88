/* Ways to add sums over groups of four products of uint8 and int8 to the lanes of mlf_sum, exact on every machine; a
 * piece of this file is the body of a macro. mlf_a and mlf_b are the factors, both of the sums' type $part. The lines
 * above the pieces are the bytes of a part, or "sve" for the size in the compiler's options, and the condition of the
 * preprocessor.
 *
 * x86 without VNNI has even and odd bytes as 16-bit lanes, whose products are added in pairs. ARM's signed dot product
 * uses a - 128, compensated by 128 times the sum of b, in two steps of 64. Otherwise, products of uint8 and int8 are
 * computed in 16 bits. Without vectors a lane is a scalar, and its factors are four bytes.
 */

//: 64 defined(__AVX512VNNI__)
  mlf_sum = ($part)_mm512_dpbusd_epi32((__m512i)mlf_sum, (__m512i)mlf_a, (__m512i)mlf_b);

//: 64 defined(__AVX512BW__)
  const __m512i mlf_low = _mm512_set1_epi16(255);
  const __m512i mlf_a_even = _mm512_and_si512((__m512i)mlf_a, mlf_low);
  const __m512i mlf_a_odd = _mm512_srli_epi16((__m512i)mlf_a, 8);
  const __m512i mlf_b_even = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)mlf_b, 8), 8);
  const __m512i mlf_b_odd = _mm512_srai_epi16((__m512i)mlf_b, 8);
  mlf_sum += ($part)_mm512_madd_epi16(mlf_a_even, mlf_b_even);
  mlf_sum += ($part)_mm512_madd_epi16(mlf_a_odd, mlf_b_odd);

//: 32 defined(__AVXVNNI__)
  mlf_sum = ($part)_mm256_dpbusd_avx_epi32((__m256i)mlf_sum, (__m256i)mlf_a, (__m256i)mlf_b);

//: 32 defined(__AVX2__)
  const __m256i mlf_low = _mm256_set1_epi16(255);
  const __m256i mlf_a_even = _mm256_and_si256((__m256i)mlf_a, mlf_low);
  const __m256i mlf_a_odd = _mm256_srli_epi16((__m256i)mlf_a, 8);
  const __m256i mlf_b_even = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)mlf_b, 8), 8);
  const __m256i mlf_b_odd = _mm256_srai_epi16((__m256i)mlf_b, 8);
  mlf_sum += ($part)_mm256_madd_epi16(mlf_a_even, mlf_b_even);
  mlf_sum += ($part)_mm256_madd_epi16(mlf_a_odd, mlf_b_odd);

//: 16 defined(__SSE2__)
  const __m128i mlf_low = _mm_set1_epi16(255);
  const __m128i mlf_a_even = _mm_and_si128((__m128i)mlf_a, mlf_low);
  const __m128i mlf_a_odd = _mm_srli_epi16((__m128i)mlf_a, 8);
  const __m128i mlf_b_even = _mm_srai_epi16(_mm_slli_epi16((__m128i)mlf_b, 8), 8);
  const __m128i mlf_b_odd = _mm_srai_epi16((__m128i)mlf_b, 8);
  mlf_sum += ($part)_mm_madd_epi16(mlf_a_even, mlf_b_even);
  mlf_sum += ($part)_mm_madd_epi16(mlf_a_odd, mlf_b_odd);

//: 16 defined(__ARM_FEATURE_MATMUL_INT8)
  mlf_sum = ($part)vusdotq_s32((int32x4_t)mlf_sum, (uint8x16_t)mlf_a, (int8x16_t)mlf_b);

//: 16 defined(__ARM_FEATURE_DOTPROD)
  const int8x16_t mlf_half = vdupq_n_s8(64), mlf_signed = (int8x16_t)(mlf_a ^ (int32_t)0x80808080);
  int32x4_t mlf_rest = vdotq_s32(vdupq_n_s32(0), mlf_half, (int8x16_t)mlf_b);
  mlf_rest = vdotq_s32(mlf_rest, mlf_half, (int8x16_t)mlf_b);
  mlf_sum = ($part)vdotq_s32((int32x4_t)mlf_sum + mlf_rest, mlf_signed, (int8x16_t)mlf_b);

//: 16 defined(__ARM_NEON)
  const int16x8_t mlf_even = (int16x8_t)(mlf_a & 0x00ff00ff);
  const int16x8_t mlf_odd = (int16x8_t)vshrq_n_u16((uint16x8_t)mlf_a, 8);
  const int16x8_t mlf_b_even = vshrq_n_s16(vshlq_n_s16((int16x8_t)mlf_b, 8), 8);
  const int16x8_t mlf_b_odd = vshrq_n_s16((int16x8_t)mlf_b, 8);
  int32x4_t mlf_total = vpadalq_s16((int32x4_t)mlf_sum, vmulq_s16(mlf_even, mlf_b_even));
  mlf_total = vpadalq_s16(mlf_total, vmulq_s16(mlf_odd, mlf_b_odd));
  mlf_sum = ($part)mlf_total;

//: sve defined(__ARM_FEATURE_SVE_MATMUL_INT8)
  typedef svint32_t mlf_words __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
  typedef svint8_t mlf_bytes __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
  typedef svuint8_t mlf_codes __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
  mlf_sum = ($part)(mlf_words)svusdot_s32((mlf_words)mlf_sum, (mlf_codes)mlf_a, (mlf_bytes)mlf_b);

//: sve defined(__ARM_FEATURE_SVE)
  typedef svint32_t mlf_words __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
  typedef svint8_t mlf_bytes __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
  const svint8_t mlf_half = svdup_n_s8(64), mlf_factor = (mlf_bytes)mlf_b;
  const $part mlf_signed = mlf_a ^ (int32_t)0x80808080;
  mlf_words mlf_total = svdot_s32((mlf_words)mlf_sum, mlf_half, mlf_factor);
  mlf_total = svdot_s32(mlf_total, mlf_half, mlf_factor);
  mlf_sum = ($part)(mlf_words)svdot_s32(mlf_total, (mlf_bytes)mlf_signed, mlf_factor);

//: anywhere
  mlf_sum += (mlf_a & 255) * ((mlf_b << 24) >> 24) + ((mlf_a >> 8) & 255) * ((mlf_b << 16) >> 24);
  mlf_sum += ((mlf_a >> 16) & 255) * ((mlf_b << 8) >> 24) + ((mlf_a >> 24) & 255) * (mlf_b >> 24);

//: scalars
static inline int32_t mlf_$name(int32_t sum, mlf_bytes a, mlf_bytes b) {
  uint32_t total = (uint32_t)sum;
  for (int32_t i = 0; i < 4; ++i) {
    total += (uint32_t)((int32_t)a.byte[i] * (int8_t)b.byte[i]);
  }
  return (int32_t)total;
}

//: spread
#if MLF_VECTORS
#define mlf_spread_$short(word) mlf_splat_$short(word)
#else
static inline mlf_bytes mlf_spread_$short(int32_t word) {
  mlf_bytes bytes;
  memcpy(&bytes, &word, sizeof bytes);
  return bytes;
}
#endif

//: includes
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
