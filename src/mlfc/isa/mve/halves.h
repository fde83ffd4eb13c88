/* Sums of products of eight int16 and eight int8 in memory, in the form of MVE's instructions and portably; a piece of
 * this file is copied into code that calls it.
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
