/* Text of generated C that is identical in every file that contains it; the pieces of this file are copied there. Code
 * generation replaces `$` and the name after it.
 */

//: bits_of_float
static inline uint32_t mlf_bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

//: float_of_bits
static inline float mlf_float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

//: group
/* four bytes in memory, as the bits of one number */
static inline int32_t mlf_group(const void *place) {
  int32_t bits;
  memcpy(&bits, place, sizeof bits);
  return bits;
}

//: integer_power:signed
/* base**exponent, which wraps */
static inline $kind mlf_integer_power_$short($kind base, $kind exponent) {
  $unsigned power = 1, factor = ($unsigned)base, rest = ($unsigned)exponent;
  if (exponent < 0) { /* 1 / power, towards zero */
    return base == 1 ? 1 : base == -1 ? (exponent % 2 != 0 ? -1 : 1) : 0;
  }
  for (; rest != 0; rest >>= 1) {
    power *= (rest & 1) != 0 ? factor : 1;
    factor *= factor;
  }
  return ($kind)power;
}

//: integer_power:unsigned
/* base**exponent, which wraps */
static inline $kind mlf_integer_power_$short($kind base, $kind exponent) {
  $kind power = 1, factor = ($kind)base, rest = ($kind)exponent;
  for (; rest != 0; rest >>= 1) {
    power *= (rest & 1) != 0 ? factor : 1;
    factor *= factor;
  }
  return ($kind)power;
}

//: rounds_even
#if defined(__AVR__) && !defined(rintf) /* avr-libc lacks it */
static inline float mlf_rintf(float x) {
  return fabsf(x) < 8388608.0f ? copysignf((float)lrintf(x), x) : x;
}
#define rintf(x) mlf_rintf(x)
#endif

//: doubles
/* fails to compile where a double is a float, as on AVRs */
typedef char mlf_double_has_64_bits[sizeof(double) == 8 ? 1 : -1];

//: independent_loops
/* before loops over memory that may be both read and written: no iteration touches another's elements */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#define MLF_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define MLF_INDEPENDENT _Pragma("GCC ivdep")
#else
#define MLF_INDEPENDENT
#endif

//: scalar_loops
/* before loops with remainders in addresses, some of which clang 22 vectorizes wrongly */
#if defined(__clang__)
#define MLF_SCALAR _Pragma("clang loop vectorize(disable)")
#else
#define MLF_SCALAR
#endif

//: rolled_loops
/* before loops that compilers would unroll, although their bodies fill the registers or compare */
#if defined(__clang__)
#define MLF_ROLLED _Pragma("clang loop unroll(disable)")
#elif defined(__GNUC__) && __GNUC__ >= 8
#define MLF_ROLLED _Pragma("GCC unroll 1")
#else
#define MLF_ROLLED
#endif

//: fences
/* later values are loaded from memory behind this point, not before it into registers; so is the array, if one is named */
#if defined(__GNUC__)
#define MLF_FENCE(array) __asm__ volatile("" : : "g"(array) : "memory");
#else
#define MLF_FENCE(array)
#endif

//: wide_vectors
/* before functions of exponentials, which take so many steps that the widest vectors pay */
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define MLF_WIDE __attribute__((target("prefer-vector-width=512")))
#else
#define MLF_WIDE
#endif

//: prefetches
/* brings what is at an address to the second-level cache */
#if defined(__GNUC__)
#define MLF_PREFETCH(address) __builtin_prefetch(address, 0, 2)
#else
#define MLF_PREFETCH(address) ((void)(address))
#endif

//: hidden
/* constants are addressed without the global offset table */
#if defined(__GNUC__) && !defined(_WIN32)
#define MLF_HIDDEN __attribute__((visibility("hidden")))
#else
#define MLF_HIDDEN
#endif

//: aligned
#if defined(__GNUC__)
#define MLF_ALIGNED(bytes) __attribute__((aligned(bytes)))
#else
#define MLF_ALIGNED(bytes)
#endif

//: section
#if defined(__GNUC__) && defined(__ELF__)
#define $macro __attribute__((section("$section"), aligned(64)))
#elif defined(__GNUC__)
#define $macro __attribute__((aligned(64)))
#else
#define $macro
#endif

//: separate_rounding
/* products are rounded before they are added: a fused multiply-add would change the codes of later layers */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize ("fp-contract=off")
#endif

//: vm_trace
/* what is done before and after each kernel, whose call has this number in the code; data is NULL before it */
#if defined(MLFC_TRACE)
#include "mlfc_trace.h"
#ifndef MLFC_TRACE_RUN
#define MLFC_TRACE_RUN() ((void)0)
#define MLFC_TRACE_NUMBERS(numbers, count) ((void)(numbers))
#endif
#define MLFC_VM_TRACE(host, call, numbers, count, data, bytes) \
  do {                                                         \
    if ((data) == NULL) {                                      \
      MLFC_TRACE_BEGIN(call);                                  \
    } else {                                                   \
      MLFC_TRACE_END(call, data, (size_t)(bytes));             \
      MLFC_TRACE_NUMBERS(numbers, count);                      \
    }                                                          \
  } while (0)
#else
#define MLFC_TRACE_RUN() ((void)0)
#if defined(MLFC_LIBRARY)
#define MLFC_VM_TRACE(host, call, numbers, count, data, bytes)                        \
  do {                                                                                \
    if ((host)->trace != NULL) {                                                      \
      (host)->trace((host)->context, call, numbers, count, (void *)(data), bytes);    \
    }                                                                                 \
  } while (0)
#else
#define MLFC_VM_TRACE(host, call, numbers, count, data, bytes) ((void)(numbers))
#endif
#endif

//: trace
/* with MLFC_TRACE defined, a header sees each operator begin, and end with its output; index is its place */
#ifdef MLFC_TRACE
#include "mlfc_trace.h"
#else
#define MLFC_TRACE_BEGIN(index) ((void)0)
#define MLFC_TRACE_END(index, data, nbytes) ((void)0)
#endif
