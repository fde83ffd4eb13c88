/* Sums of products of eight int16 and eight int8 in memory, as MVE instructions and portably; the pieces of this file
 * are copied into code that calls them.
 */

//: dot8:int32
/* sum + the products of eight numbers of 16 bits and of 8 */
static inline int32_t mlf_dot8_i32(int32_t sum, const int16_t *a, const int8_t *b) {
#if defined(__ARM_FEATURE_MVE)
  return vmladavaq_s16(sum, vldrhq_s16(a), vldrbq_s16(b));
#else
  for (int32_t k = 0; k < 8; ++k) {
    sum += (int32_t)a[k] * b[k];
  }
  return sum;
#endif
}

//: dot8:int64
/* sum, of 64 bits, + the products of eight numbers of 16 bits and of 8 */
static inline int64_t mlf_dot8_i64(int64_t sum, const int16_t *a, const int8_t *b) {
#if defined(__ARM_FEATURE_MVE)
  return vmlaldavaq_s16(sum, vldrhq_s16(a), vldrbq_s16(b));
#else
  for (int32_t k = 0; k < 8; ++k) {
    sum += (int32_t)a[k] * b[k];
  }
  return sum;
#endif
}

//: dot32:int32
/* sum + 16 times the products of 32 numbers of 8 bits and of 4, of which the low halves of 16 bytes come first */
static inline int32_t mlf_dot32_i32(int32_t sum, const int8_t *a, const int8_t *b) {
#if defined(__ARM_FEATURE_MVE)
  const int8x16_t both = vldrbq_s8(b);
  sum = vmladavaq_s8(sum, vldrbq_s8(a), vshlq_n_s8(both, 4));
  return vmladavaq_s8(sum, vldrbq_s8(a + 16), vandq_s8(both, vdupq_n_s8(-16)));
#else
  for (int32_t k = 0; k < 16; ++k) {
    const int32_t high = b[k] >> 4;
    sum += 16 * (a[k] * (b[k] - 16 * high - (((b[k] & 8) != 0) ? 16 : 0)) + a[k + 16] * high);
  }
  return sum;
#endif
}
