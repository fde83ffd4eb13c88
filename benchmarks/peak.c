/* Multiply-accumulates a second of one core: independent chains that stay in registers. */
#include <stdint.h>

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

#define CHAINS 12

float peak_float32(int64_t steps) {
  f32x16 sums[CHAINS];
  f32x16 factor, addend;
  for (int lane = 0; lane < 16; lane++) {
    factor[lane] = 0.999f;
    addend[lane] = 1e-3f;
  }
  for (int i = 0; i < CHAINS; i++) sums[i] = addend;
  for (int64_t step = 0; step < steps; step++) {
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) {
      sums[i] = sums[i] * factor + addend;
      __asm__ volatile("" : "+v"(sums[i]));
    }
  }
  float total = 0;
  for (int i = 0; i < CHAINS; i++) total += sums[i][0];
  return total;
}

#if defined(__AVX512VNNI__)
#include <immintrin.h>
int32_t peak_int8(int64_t steps) {
  __m512i sums[CHAINS];
  __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(1);
  for (int i = 0; i < CHAINS; i++) sums[i] = _mm512_setzero_si512();
  for (int64_t step = 0; step < steps; step++) {
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++) {
      sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
      __asm__ volatile("" : "+v"(sums[i]));
    }
  }
  int32_t total = 0;
  for (int i = 0; i < CHAINS; i++) total += _mm512_reduce_add_epi32(sums[i]);
  return total;
}
#else
int32_t peak_int8(int64_t steps) { return (int32_t)steps * 0; }
#endif
