/* Arithmetic on vectors of $n int32, as AVX-512 and AVX2 instructions and portably; the pieces of this file are copied
 * into code that calls them. `q` is the index of the vector part in a statement.
 *
 * requantize_down multiplies even and odd lanes in 64 bits. The result is bits 31 to 62 of a rounded product: they are
 * shifted down in even lanes and up in odd ones, so that one blend combines them.
 *
 * requantize_line is the integer part of a line in float32 (`mlfc.support.lines`), both of whose steps round down where
 * that matters; its unused operands are for the other forms. requantize_line_above clamps negative results to zero.
 * Only registers of 64 bytes have instructions with a static rounding mode.
 */

//: includes
#if defined(__AVX2__)
#include <immintrin.h>
#if defined(__clang__)
/* what only the portable forms call */
#pragma clang diagnostic ignored "-Wunused-function"
#endif
#endif

//: min
#if !MLF_VECTORS
static inline int32_t mlf_min_i32x$n(int32_t a, int32_t b) {
  return a < b ? a : b;
}
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_min_i32x$n(a, b) __extension__({ \
  const __m512i mlf_a = (__m512i)(a); \
  const __m512i mlf_b = (__m512i)(b); \
  (mlf_i32x${n}_part)_mm512_min_epi32(mlf_a, mlf_b); })
#elif defined(__AVX2__) && $n / MLF_PARTS == 8
#define mlf_min_i32x$n(a, b) __extension__({ \
  const __m256i mlf_a = (__m256i)(a); \
  const __m256i mlf_b = (__m256i)(b); \
  (mlf_i32x${n}_part)_mm256_min_epi32(mlf_a, mlf_b); })
#else
#define mlf_min_i32x$n(a, b) __extension__({ \
  const mlf_i32x${n}_part mlf_a = (mlf_i32x${n}_part)(a); \
  const mlf_i32x${n}_part mlf_b = (mlf_i32x${n}_part)(b); \
  mlf_i32x${n}_part mlf_r = {0}; \
  for (int32_t mlf_i = 0; mlf_i < $n / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_a[mlf_i] < mlf_b[mlf_i] ? mlf_a[mlf_i] : mlf_b[mlf_i]; } \
  mlf_r; })
#endif

//: max
#if !MLF_VECTORS
static inline int32_t mlf_max_i32x$n(int32_t a, int32_t b) {
  return a > b ? a : b;
}
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_max_i32x$n(a, b) __extension__({ \
  const __m512i mlf_a = (__m512i)(a); \
  const __m512i mlf_b = (__m512i)(b); \
  (mlf_i32x${n}_part)_mm512_max_epi32(mlf_a, mlf_b); })
#elif defined(__AVX2__) && $n / MLF_PARTS == 8
#define mlf_max_i32x$n(a, b) __extension__({ \
  const __m256i mlf_a = (__m256i)(a); \
  const __m256i mlf_b = (__m256i)(b); \
  (mlf_i32x${n}_part)_mm256_max_epi32(mlf_a, mlf_b); })
#else
#define mlf_max_i32x$n(a, b) __extension__({ \
  const mlf_i32x${n}_part mlf_a = (mlf_i32x${n}_part)(a); \
  const mlf_i32x${n}_part mlf_b = (mlf_i32x${n}_part)(b); \
  mlf_i32x${n}_part mlf_r = {0}; \
  for (int32_t mlf_i = 0; mlf_i < $n / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_a[mlf_i] > mlf_b[mlf_i] ? mlf_a[mlf_i] : mlf_b[mlf_i]; } \
  mlf_r; })
#endif

//: requantize_down
#if !MLF_VECTORS
#define mlf_requantize_down_i32x$n(a, b, c) mlf_requantize_down(a, b, c)
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_requantize_down_i32x$n(a, b, c) __extension__({ \
  const __m512i mlf_a = (__m512i)(a); \
  const __m512i mlf_b = (__m512i)(b); \
  const __m512i mlf_c = (__m512i)(c); \
  const __m512i mlf_half = _mm512_set1_epi64(1 << 30); \
  const __m512i mlf_even = _mm512_add_epi64(_mm512_mul_epi32(mlf_a, mlf_b), mlf_half); \
  const __m512i mlf_a_odd = _mm512_srli_epi64(mlf_a, 32), mlf_b_odd = _mm512_srli_epi64(mlf_b, 32); \
  const __m512i mlf_odd = _mm512_add_epi64(_mm512_mul_epi32(mlf_a_odd, mlf_b_odd), mlf_half); \
  const __m512i mlf_up = _mm512_add_epi64(mlf_odd, mlf_odd); \
  const __m512i mlf_h = _mm512_mask_mov_epi32(_mm512_srli_epi64(mlf_even, 31), 0xaaaa, mlf_up); \
  const __m512i mlf_away = _mm512_srav_epi32(_mm512_add_epi32(mlf_h, _mm512_srai_epi32(mlf_h, 31)), mlf_c); \
  (mlf_i32x${n}_part)_mm512_srai_epi32(_mm512_add_epi32(mlf_away, _mm512_set1_epi32(1)), 1); })
#elif defined(__AVX2__) && $n / MLF_PARTS == 8
#define mlf_requantize_down_i32x$n(a, b, c) __extension__({ \
  const __m256i mlf_a = (__m256i)(a); \
  const __m256i mlf_b = (__m256i)(b); \
  const __m256i mlf_c = (__m256i)(c); \
  const __m256i mlf_half = _mm256_set1_epi64x(1 << 30); \
  const __m256i mlf_even = _mm256_add_epi64(_mm256_mul_epi32(mlf_a, mlf_b), mlf_half); \
  const __m256i mlf_a_odd = _mm256_srli_epi64(mlf_a, 32), mlf_b_odd = _mm256_srli_epi64(mlf_b, 32); \
  const __m256i mlf_odd = _mm256_add_epi64(_mm256_mul_epi32(mlf_a_odd, mlf_b_odd), mlf_half); \
  const __m256i mlf_up = _mm256_add_epi64(mlf_odd, mlf_odd); \
  const __m256i mlf_h = _mm256_blend_epi32(_mm256_srli_epi64(mlf_even, 31), mlf_up, 0xaa); \
  const __m256i mlf_away = _mm256_srav_epi32(_mm256_add_epi32(mlf_h, _mm256_srai_epi32(mlf_h, 31)), mlf_c); \
  (mlf_i32x${n}_part)_mm256_srai_epi32(_mm256_add_epi32(mlf_away, _mm256_set1_epi32(1)), 1); })
#else
#define mlf_requantize_down_i32x$n(a, b, c) __extension__({ \
  const mlf_i32x${n}_part mlf_a = (mlf_i32x${n}_part)(a); \
  const mlf_i32x${n}_part mlf_b = (mlf_i32x${n}_part)(b); \
  const mlf_i32x${n}_part mlf_c = (mlf_i32x${n}_part)(c); \
  mlf_i32x${n}_part mlf_r = {0}; \
  for (int32_t mlf_i = 0; mlf_i < $n / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_requantize_down(mlf_a[mlf_i], mlf_b[mlf_i], mlf_c[mlf_i]); } \
  mlf_r; })
#endif

//: line
#define MLF_DOWN (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)

//: requantize_line
#if defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_requantize_line_i32x$n(a, b, c, slope, rest, above, below) __extension__({ \
  (void)(b); (void)(c); \
  const __m512i mlf_a = (__m512i)(a); \
  const __mmask16 mlf_negative = _mm512_cmplt_epi32_mask(mlf_a, _mm512_setzero_si512()); \
  const __m512 mlf_begin = _mm512_mask_mov_ps((__m512)(above), mlf_negative, (__m512)(below)); \
  const __m512 mlf_x = _mm512_cvtepi32_ps(mlf_a); \
  const __m512 mlf_start = _mm512_fmadd_ps(mlf_x, (__m512)(rest), mlf_begin); \
  const __m512 mlf_sum = _mm512_fmadd_round_ps(mlf_x, (__m512)(slope), mlf_start, MLF_DOWN); \
  (mlf_i32x${n}_part)_mm512_cvt_roundps_epi32(mlf_sum, MLF_DOWN); })
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 8
#define mlf_requantize_line_i32x$n(a, b, c, slope, rest, above, below) __extension__({ \
  (void)(b); (void)(c); \
  const __m512i mlf_a = _mm512_zextsi256_si512((__m256i)(a)); \
  const __mmask16 mlf_negative = _mm512_cmplt_epi32_mask(mlf_a, _mm512_setzero_si512()); \
  const __m512 mlf_above = _mm512_zextps256_ps512((__m256)(above)), mlf_below = _mm512_zextps256_ps512((__m256)(below)); \
  const __m512 mlf_begin = _mm512_mask_mov_ps(mlf_above, mlf_negative, mlf_below); \
  const __m512 mlf_x = _mm512_cvtepi32_ps(mlf_a); \
  const __m512 mlf_start = _mm512_fmadd_ps(mlf_x, _mm512_zextps256_ps512((__m256)(rest)), mlf_begin); \
  const __m512 mlf_slope = _mm512_zextps256_ps512((__m256)(slope)); \
  const __m512 mlf_sum = _mm512_fmadd_round_ps(mlf_x, mlf_slope, mlf_start, MLF_DOWN); \
  (mlf_i32x${n}_part)_mm512_castsi512_si256(_mm512_cvt_roundps_epi32(mlf_sum, MLF_DOWN)); })
#else
#define mlf_requantize_line_i32x$n(a, b, c, slope, rest, above, below) \
  ((void)(slope), (void)(rest), (void)(above), (void)(below), mlf_requantize_down_i32x$n(a, b, c))
#endif

//: requantize_line_above
#if defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_requantize_line_above_i32x$n(a, b, c, slope, rest, above) __extension__({ \
  (void)(b); (void)(c); \
  const __m512 mlf_x = _mm512_cvtepi32_ps((__m512i)(a)); \
  const __m512 mlf_start = _mm512_fmadd_ps(mlf_x, (__m512)(rest), (__m512)(above)); \
  const __m512 mlf_sum = _mm512_fmadd_round_ps(mlf_x, (__m512)(slope), mlf_start, MLF_DOWN); \
  (mlf_i32x${n}_part)_mm512_cvt_roundps_epi32(mlf_sum, MLF_DOWN); })
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 8
#define mlf_requantize_line_above_i32x$n(a, b, c, slope, rest, above) __extension__({ \
  (void)(b); (void)(c); \
  const __m512 mlf_x = _mm512_cvtepi32_ps(_mm512_zextsi256_si512((__m256i)(a))); \
  const __m512 mlf_begin = _mm512_zextps256_ps512((__m256)(above)); \
  const __m512 mlf_start = _mm512_fmadd_ps(mlf_x, _mm512_zextps256_ps512((__m256)(rest)), mlf_begin); \
  const __m512 mlf_slope = _mm512_zextps256_ps512((__m256)(slope)); \
  const __m512 mlf_sum = _mm512_fmadd_round_ps(mlf_x, mlf_slope, mlf_start, MLF_DOWN); \
  (mlf_i32x${n}_part)_mm512_castsi512_si256(_mm512_cvt_roundps_epi32(mlf_sum, MLF_DOWN)); })
#else
#define mlf_requantize_line_above_i32x$n(a, b, c, slope, rest, above) \
  ((void)(slope), (void)(rest), (void)(above), mlf_requantize_down_i32x$n(a, b, c))
#endif

//: whole_of_plane
#if defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_whole_of_plane_i32x$n(exact, a, b, first, second, start) __extension__({ \
  (void)sizeof(exact); \
  const __m512 mlf_a = _mm512_cvtepi32_ps((__m512i)(a)); \
  const __m512 mlf_b = _mm512_cvtepi32_ps((__m512i)(b)); \
  const __m512 mlf_start = _mm512_fmadd_ps(mlf_b, (__m512)(second), (__m512)(start)); \
  const __m512 mlf_sum = _mm512_fmadd_round_ps(mlf_a, (__m512)(first), mlf_start, MLF_DOWN); \
  (mlf_i32x${n}_part)_mm512_cvt_roundps_epi32(mlf_sum, MLF_DOWN); })
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 8
#define mlf_whole_of_plane_i32x$n(exact, a, b, first, second, start) __extension__({ \
  (void)sizeof(exact); \
  const __m512 mlf_a = _mm512_cvtepi32_ps(_mm512_zextsi256_si512((__m256i)(a))); \
  const __m512 mlf_b = _mm512_cvtepi32_ps(_mm512_zextsi256_si512((__m256i)(b))); \
  const __m512 mlf_second = _mm512_zextps256_ps512((__m256)(second)); \
  const __m512 mlf_start = _mm512_fmadd_ps(mlf_b, mlf_second, _mm512_zextps256_ps512((__m256)(start))); \
  const __m512 mlf_first = _mm512_zextps256_ps512((__m256)(first)); \
  const __m512 mlf_sum = _mm512_fmadd_round_ps(mlf_a, mlf_first, mlf_start, MLF_DOWN); \
  (mlf_i32x${n}_part)_mm512_castsi512_si256(_mm512_cvt_roundps_epi32(mlf_sum, MLF_DOWN)); })
#else
#define mlf_whole_of_plane_i32x$n(exact, a, b, first, second, start) \
  ((void)(first), (void)(second), (void)(start), exact)
#endif

//: push_byte
#if defined(__AVX512BW__) && MLF_PARTS == 1
#define mlf_push_byte(lanes, value) \
  ((mlf_u8x64_part)_mm512_or_si512(_mm512_srli_epi32((__m512i)(lanes), 8), _mm512_slli_epi32((__m512i)(value), 24)))
#else
#define mlf_push_byte(lanes, value) \
  ((mlf_u8x64_part)((mlf_u32x16_part)(lanes) >> 8 | (mlf_u32x16_part)(value) << 24))
#endif

//: push_flipped
#if defined(__AVX512BW__) && MLF_PARTS == 1
#define mlf_push_flipped(lanes, value) \
  ((mlf_u8x64_part)_mm512_ternarylogic_epi32(_mm512_srli_epi32((__m512i)(lanes), 8), \
    _mm512_slli_epi32((__m512i)(value), 24), _mm512_set1_epi32(-2147483647 - 1), 0xf6))
#else
#define mlf_push_flipped(lanes, value) \
  ((mlf_u8x64_part)(((mlf_u32x16_part)(lanes) >> 8 | (mlf_u32x16_part)(value) << 24) ^ 0x80000000u))
#endif

//: whole
#if !MLF_VECTORS
#define mlf_whole_i32x$n(a) ((int32_t)(a))
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_whole_i32x$n(a) ((mlf_i32x${n}_part)_mm512_cvttps_epi32((__m512)(a)))
#elif defined(__AVX2__) && $n / MLF_PARTS == 8
#define mlf_whole_i32x$n(a) ((mlf_i32x${n}_part)_mm256_cvttps_epi32((__m256)(a)))
#else
#define mlf_whole_i32x$n(a) __extension__({ \
  const mlf_f32x${n}_part mlf_a = (mlf_f32x${n}_part)(a); \
  mlf_i32x${n}_part mlf_r = {0}; \
  for (int32_t mlf_i = 0; mlf_i < $n / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = (int32_t)mlf_a[mlf_i]; } \
  mlf_r; })
#endif

//: widen
#if !MLF_VECTORS
#define mlf_widen_$short(place) ((int32_t)(place)[q])
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_widen_$short(place) \
  ((mlf_i32x${n}_part)_mm512_cvtep${letter}${bits}_epi32($load((const void *)(place))))
#elif defined(__AVX2__) && $n / MLF_PARTS == 8
#define mlf_widen_$short(place) \
  ((mlf_i32x${n}_part)_mm256_cvtep${letter}${bits}_epi32($load_half((const void *)((place) + 8 * q))))
#else
#define mlf_widen_$short(place) __extension__({ \
  const $kind *mlf_from = (place) + q * ($n / MLF_PARTS); \
  mlf_i32x${n}_part mlf_r = {0}; \
  for (int32_t mlf_i = 0; mlf_i < $n / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_from[mlf_i]; } \
  mlf_r; })
#endif

//: narrow
#if !MLF_VECTORS
#define mlf_narrow_$short(place, value) ((place)[q] = ($kind)(value))
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_narrow_$short(place, value) $store((void *)(place), _mm512_cvtepi32_epi$bits((__m512i)(value)))
#elif defined(__AVX2__) && $n / MLF_PARTS == 8
#define mlf_narrow_$short(place, value) do { \
  const __m256i mlf_low = _mm256_shuffle_epi8((__m256i)(value), _mm256_broadcastsi128_si256($lowest)); \
  const __m128i mlf_ends = $joined(_mm256_castsi256_si128(mlf_low), _mm256_extracti128_si256(mlf_low, 1)); \
  $store_half((void *)((place) + 8 * q), mlf_ends); \
} while (0)
#else
#define mlf_narrow_$short(place, value) do { \
  $kind *mlf_to = (place) + q * ($n / MLF_PARTS); \
  const mlf_i32x${n}_part mlf_value = (value); \
  for (int32_t mlf_i = 0; mlf_i < $n / MLF_PARTS; ++mlf_i) { mlf_to[mlf_i] = ($kind)mlf_value[mlf_i]; } \
} while (0)
#endif

//: saturate
#if !MLF_VECTORS
#define mlf_saturate_$short(place, value) \
  ((place)[q] = ($kind)((value) < -128 ? -128 : (value) > 127 ? 127 : (value)))
#elif defined(__AVX512BW__) && $n / MLF_PARTS == 16
#define mlf_saturate_$short(place, value) $store((void *)(place), _mm512_cvtsepi32_epi$bits((__m512i)(value)))
#elif defined(__AVX2__) && $n / MLF_PARTS == 8
#define mlf_saturate_$short(place, value) do { \
  const __m256i mlf_value = (__m256i)(value); \
  const __m128i mlf_words = _mm_packs_epi32(_mm256_castsi256_si128(mlf_value), _mm256_extracti128_si256(mlf_value, 1)); \
  _mm_storel_epi64((void *)((place) + 8 * q), _mm_packs_epi16(mlf_words, mlf_words)); \
} while (0)
#else
#define mlf_saturate_$short(place, value) do { \
  $kind *mlf_to = (place) + q * ($n / MLF_PARTS); \
  const mlf_i32x${n}_part mlf_value = (value); \
  for (int32_t mlf_i = 0; mlf_i < $n / MLF_PARTS; ++mlf_i) { \
    mlf_to[mlf_i] = ($kind)(mlf_value[mlf_i] < -128 ? -128 : mlf_value[mlf_i] > 127 ? 127 : mlf_value[mlf_i]); \
  } \
} while (0)
#endif
