/* Multiply-accumulates per second of one core: independent chains that stay in registers. */
#include <stdint.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#if defined(__aarch64__)
#define REGISTER "+w"
#else
#define REGISTER "+v"
#endif

typedef float floats __attribute__((vector_size(BYTES)));

int32_t peak_lanes(void) { return BYTES / 4; }

/* separate variables, because compilers keep arrays of chains in memory */
#define EACH(STEP) STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9) STEP(10) STEP(11)

float peak_float32(int64_t steps) {
  const floats factor = (floats){0} + 0.999f, addend = (floats){0} + 1e-3f;
#define START(n) floats sum##n = addend;
#define STEP(n) sum##n = sum##n * factor + addend; __asm__ volatile("" : REGISTER(sum##n));
#define ADD(n) + sum##n[0]
  EACH(START)
  for (int64_t step = 0; step < steps; step++) {
    EACH(STEP)
  }
  return 0 EACH(ADD);
#undef START
#undef STEP
#undef ADD
}

#if defined(__AVX512VNNI__)
#include <immintrin.h>

int32_t peak_int8(int64_t steps) {
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(1);
#define START(n) __m512i sum##n = _mm512_setzero_si512();
#define STEP(n) sum##n = _mm512_dpbusd_epi32(sum##n, a, b); __asm__ volatile("" : REGISTER(sum##n));
#define ADD(n) + _mm512_reduce_add_epi32(sum##n)
  EACH(START)
  for (int64_t step = 0; step < steps; step++) {
    EACH(STEP)
  }
  return 0 EACH(ADD);
}
#else
int32_t peak_int8(int64_t steps) { return (int32_t)steps; } /* never timed: see peak.py */
#endif
