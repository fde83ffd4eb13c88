/* Loads and stores of $n float16 as float32; `q` is the index of the vector part in a statement. */

//: includes
#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#if defined(__clang__)
/* what only compilers without vectors call */
#pragma clang diagnostic ignored "-Wunused-function"
#endif

//: widen_halves
#if !MLF_VECTORS
#define mlf_widen_halves(place) mlf_float16_to_float((place)[q])
#elif defined(__AVX512F__) && MLF_PARTS == 1
#define mlf_widen_halves(place) ((mlf_f32x16_part)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)(place))))
#elif defined(__F16C__) && MLF_PARTS == 2
#define mlf_widen_halves(place) ((mlf_f32x16_part)_mm256_cvtph_ps(_mm_loadu_si128((const void *)((place) + 8 * q))))
#elif defined(__aarch64__) && defined(__ARM_NEON) && MLF_PARTS == 4
#define mlf_widen_halves(place) ((mlf_f32x16_part)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((place) + 4 * q))))
#else
#define mlf_widen_halves(place) __extension__({ \
  const mlf_u32x16_part mlf_wide = __builtin_convertvector(((const mlf_u16x16_u *)(place))[q], mlf_u32x16_part); \
  const mlf_u32x16_part mlf_size = mlf_wide & 0x7fffU; \
  const mlf_u32x16_part mlf_small = (mlf_u32x16_part)(mlf_size < 0x400U); \
  const mlf_u32x16_part mlf_infinite = (mlf_u32x16_part)(mlf_size >= 0x7c00U) & 0x38000000U; \
  const mlf_u32x16_part mlf_bias = 0x38000000U + (mlf_small & 0x800000U) + mlf_infinite; \
  const mlf_f32x16_part mlf_extra = (mlf_f32x16_part)(mlf_small & 0x38800000U); \
  const mlf_f32x16_part mlf_r = (mlf_f32x16_part)((mlf_size << 13) + mlf_bias) - mlf_extra; \
  (mlf_f32x16_part)((mlf_u32x16_part)mlf_r | (mlf_wide & 0x8000U) << 16); })
#endif

//: narrow_halves
#if !MLF_VECTORS
#define mlf_narrow_halves(place, value) ((place)[q] = mlf_float16_from_float(value))
#elif defined(__AVX512F__) && MLF_PARTS == 1
#define mlf_narrow_halves(place, value) \
  _mm256_storeu_si256((void *)(place), _mm512_cvtps_ph((__m512)(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#elif defined(__F16C__) && MLF_PARTS == 2
#define mlf_narrow_halves(place, value) \
  _mm_storeu_si128((void *)((place) + 8 * q), _mm256_cvtps_ph((__m256)(value), _MM_FROUND_TO_NEAREST_INT))
#elif defined(__aarch64__) && defined(__ARM_NEON) && MLF_PARTS == 4
#define mlf_narrow_halves(place, value) \
  vst1_u16((place) + 4 * q, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)(value))))
#else
#define mlf_narrow_halves(place, value) do { \
  const mlf_u32x16_part mlf_bits = (mlf_u32x16_part)(value), mlf_size = mlf_bits & 0x7fffffffU; \
  const mlf_u32x16_part mlf_large = (mlf_u32x16_part)(mlf_size > 0x47800000U); \
  const mlf_u32x16_part mlf_limited = (mlf_size & ~mlf_large) | (mlf_large & 0x47800000U); \
  const mlf_u32x16_part mlf_some = mlf_limited & 0x7f800000U; \
  const mlf_u32x16_part mlf_small = (mlf_u32x16_part)(mlf_some < 0x38800000U); \
  const mlf_u32x16_part mlf_unit = ((mlf_some & ~mlf_small) | (mlf_small & 0x38800000U)) + 0x6800000U; \
  const mlf_f32x16_part mlf_sum = (mlf_f32x16_part)mlf_limited + (mlf_f32x16_part)mlf_unit; \
  const mlf_u32x16_part mlf_nan = (mlf_u32x16_part)(mlf_size > 0x7f800000U) & (0x200U | (mlf_bits >> 13 & 0x1ffU)); \
  const mlf_u32x16_part mlf_r = (mlf_u32x16_part)mlf_sum - mlf_unit + ((mlf_unit - 0x3f000000U) >> 13); \
  const mlf_u32x16_part mlf_all = mlf_r | mlf_nan | (mlf_bits >> 16 & 0x8000U); \
  ((mlf_u16x16_u *)(place))[q] = __builtin_convertvector(mlf_all, mlf_u16x16_part); \
} while (0)
#endif
