/* Arithmetic on pairs of 16-bit numbers in a word: declarations for the helpers, and loads of words from memory; the
 * pieces of this file are copied into code that needs them.
 */

//: includes
#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32)
#include <arm_acle.h>
#define MLF_DSP 1
#else
#define MLF_DSP 0
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MLF_LITTLE_ENDIAN 1
#else
#define MLF_LITTLE_ENDIAN 0
#endif

//: word
/* $count elements in memory as one number, the first one lowest */
static inline int32_t mlf_word_$short(const $kind *p) {
#if MLF_LITTLE_ENDIAN
  int32_t word;
  memcpy(&word, p, sizeof word);
  return word;
#else
  return (int32_t)($shifted);
#endif
}
