/* Arithmetic on vectors of four int32, as MVE instructions and portably; the pieces of this file are copied into code
 * that calls them. `q` is the index of the vector part in a statement.
 *
 * The rounding instructions round ties up: subtracting one below zero makes that away from zero. requantize_away_down
 * subtracts one from the high half if the low half is zero, without predicates, on which gcc 12 fails here. saturate
 * is in assembler: without constants, and in place, unlike the compilers' intrinsics.
 */

//: includes
#if defined(__ARM_FEATURE_MVE)
#include <arm_mve.h>
#if defined(__clang__)
/* what only the portable forms call */
#pragma clang diagnostic ignored "-Wunused-function"
#endif
#endif

//: min
#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1
#define mlf_min_i32x4(a, b) __extension__({ \
  const int32x4_t mlf_a = (int32x4_t)(a); \
  const int32x4_t mlf_b = (int32x4_t)(b); \
  (mlf_i32x4_part)vminq_s32(mlf_a, mlf_b); })
#else
#define mlf_min_i32x4(a, b) __extension__({ \
  const mlf_i32x4_part mlf_a = (mlf_i32x4_part)(a); \
  const mlf_i32x4_part mlf_b = (mlf_i32x4_part)(b); \
  mlf_i32x4_part mlf_r; \
  for (int32_t mlf_i = 0; mlf_i < 4 / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_a[mlf_i] < mlf_b[mlf_i] ? mlf_a[mlf_i] : mlf_b[mlf_i]; } \
  mlf_r; })
#endif

//: max
#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1
#define mlf_max_i32x4(a, b) __extension__({ \
  const int32x4_t mlf_a = (int32x4_t)(a); \
  const int32x4_t mlf_b = (int32x4_t)(b); \
  (mlf_i32x4_part)vmaxq_s32(mlf_a, mlf_b); })
#else
#define mlf_max_i32x4(a, b) __extension__({ \
  const mlf_i32x4_part mlf_a = (mlf_i32x4_part)(a); \
  const mlf_i32x4_part mlf_b = (mlf_i32x4_part)(b); \
  mlf_i32x4_part mlf_r; \
  for (int32_t mlf_i = 0; mlf_i < 4 / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_a[mlf_i] > mlf_b[mlf_i] ? mlf_a[mlf_i] : mlf_b[mlf_i]; } \
  mlf_r; })
#endif

//: requantize_down
#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1
#define mlf_requantize_down_i32x4(a, b, c) __extension__({ \
  const int32x4_t mlf_a = (int32x4_t)(a); \
  const int32x4_t mlf_b = (int32x4_t)(b); \
  const int32x4_t mlf_c = (int32x4_t)(c); \
  const int32x4_t mlf_h = vqrdmulhq_s32(mlf_a, mlf_b); \
  (mlf_i32x4_part)vrshlq_s32(vaddq_s32(mlf_h, vshrq_n_s32(mlf_h, 31)), vmvnq_s32(mlf_c)); })
#else
#define mlf_requantize_down_i32x4(a, b, c) __extension__({ \
  const mlf_i32x4_part mlf_a = (mlf_i32x4_part)(a); \
  const mlf_i32x4_part mlf_b = (mlf_i32x4_part)(b); \
  const mlf_i32x4_part mlf_c = (mlf_i32x4_part)(c); \
  mlf_i32x4_part mlf_r; \
  for (int32_t mlf_i = 0; mlf_i < 4 / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_requantize_down(mlf_a[mlf_i], mlf_b[mlf_i], mlf_c[mlf_i]); } \
  mlf_r; })
#endif

//: requantize_double
#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1
#define mlf_requantize_double_i32x4(a, b, c) __extension__({ \
  const int32x4_t mlf_a = (int32x4_t)(a); \
  const int32x4_t mlf_b = (int32x4_t)(b); \
  const int32x4_t mlf_c = (int32x4_t)(c); \
  const int32x4_t mlf_zero = vdupq_n_s32(0), mlf_right = vminq_s32(mlf_c, mlf_zero); \
  const int32x4_t mlf_h = vqrdmulhq_s32(vshlq_s32(mlf_a, vmaxq_s32(mlf_c, mlf_zero)), mlf_b); \
  (mlf_i32x4_part)vrshlq_s32(vaddq_s32(mlf_h, vshrq_n_s32(vandq_s32(mlf_h, mlf_right), 31)), mlf_right); })
#else
#define mlf_requantize_double_i32x4(a, b, c) __extension__({ \
  const mlf_i32x4_part mlf_a = (mlf_i32x4_part)(a); \
  const mlf_i32x4_part mlf_b = (mlf_i32x4_part)(b); \
  const mlf_i32x4_part mlf_c = (mlf_i32x4_part)(c); \
  mlf_i32x4_part mlf_r; \
  for (int32_t mlf_i = 0; mlf_i < 4 / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_requantize_double(mlf_a[mlf_i], mlf_b[mlf_i], mlf_c[mlf_i]); } \
  mlf_r; })
#endif

//: requantize_single_down
#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1
#define mlf_requantize_single_down_i32x4(a, b, c) __extension__({ \
  const int32x4_t mlf_a = (int32x4_t)(a); \
  const int32x4_t mlf_b = (int32x4_t)(b); \
  const int32x4_t mlf_c = (int32x4_t)(c); \
  (mlf_i32x4_part)vrshlq_s32(vmulhq_s32(mlf_a, mlf_b), vmvnq_s32(mlf_c)); })
#else
#define mlf_requantize_single_down_i32x4(a, b, c) __extension__({ \
  const mlf_i32x4_part mlf_a = (mlf_i32x4_part)(a); \
  const mlf_i32x4_part mlf_b = (mlf_i32x4_part)(b); \
  const mlf_i32x4_part mlf_c = (mlf_i32x4_part)(c); \
  mlf_i32x4_part mlf_r; \
  for (int32_t mlf_i = 0; mlf_i < 4 / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_requantize_single(mlf_a[mlf_i], mlf_b[mlf_i], -2 - mlf_c[mlf_i]); } \
  mlf_r; })
#endif

//: requantize_away_down
#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1
#define mlf_requantize_away_down_i32x4(a, b, c) __extension__({ \
  const int32x4_t mlf_a = (int32x4_t)(a); \
  const int32x4_t mlf_b = (int32x4_t)(b); \
  const int32x4_t mlf_c = (int32x4_t)(c); \
  const int32x4_t mlf_high = vmulhq_s32(mlf_a, mlf_b), mlf_one = vdupq_n_s32(1); \
  const uint32x4_t mlf_low = vminq_u32((uint32x4_t)vmulq_s32(mlf_a, mlf_b), (uint32x4_t)mlf_one); \
  const int32x4_t mlf_less = vandq_s32(vshrq_n_s32(mlf_high, 31), vsubq_s32((int32x4_t)mlf_low, mlf_one)); \
  (mlf_i32x4_part)vrshlq_s32(vaddq_s32(mlf_high, mlf_less), vmvnq_s32(mlf_c)); })
#else
#define mlf_requantize_away_down_i32x4(a, b, c) __extension__({ \
  const mlf_i32x4_part mlf_a = (mlf_i32x4_part)(a); \
  const mlf_i32x4_part mlf_b = (mlf_i32x4_part)(b); \
  const mlf_i32x4_part mlf_c = (mlf_i32x4_part)(c); \
  mlf_i32x4_part mlf_r; \
  for (int32_t mlf_i = 0; mlf_i < 4 / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_requantize_away(mlf_a[mlf_i], mlf_b[mlf_i], -2 - mlf_c[mlf_i]); } \
  mlf_r; })
#endif

//: widen
#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1
#define mlf_widen_$short(place) ((mlf_i32x4_part)vldr${width}q_${sign}32(place))
#else
#define mlf_widen_$short(place) __extension__({ \
  const $kind *mlf_from = (place) + q * (4 / MLF_PARTS); \
  mlf_i32x4_part mlf_r; \
  for (int32_t mlf_i = 0; mlf_i < 4 / MLF_PARTS; ++mlf_i) { mlf_r[mlf_i] = mlf_from[mlf_i]; } \
  mlf_r; })
#endif

//: narrow
#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1
#define mlf_narrow_$short(place, value) vstr${width}q_${sign}32(place, ($lanes)(value))
#else
#define mlf_narrow_$short(place, value) do { \
  $kind *mlf_to = (place) + q * (4 / MLF_PARTS); \
  const mlf_i32x4_part mlf_value = (value); \
  for (int32_t mlf_i = 0; mlf_i < 4 / MLF_PARTS; ++mlf_i) { mlf_to[mlf_i] = ($kind)mlf_value[mlf_i]; } \
} while (0)
#endif

//: saturate
#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1
#define mlf_saturate_i8x4(place, value) do { \
  int32x4_t mlf_value = (int32x4_t)(value); \
  __asm__("vqmovnb.s32 %q0, %q0\n\tvqmovnb.s16 %q0, %q0" : "+w"(mlf_value)); \
  vstrbq_s32(place, mlf_value); \
} while (0)
#else
#define mlf_saturate_i8x4(place, value) do { \
  int8_t *mlf_to = (place) + q * (4 / MLF_PARTS); \
  const mlf_i32x4_part mlf_value = (value); \
  for (int32_t mlf_i = 0; mlf_i < 4 / MLF_PARTS; ++mlf_i) { mlf_to[mlf_i] = (int8_t)(mlf_value[mlf_i] < -128 ? -128 : mlf_value[mlf_i] > 127 ? 127 : mlf_value[mlf_i]); } \
} while (0)
#endif
