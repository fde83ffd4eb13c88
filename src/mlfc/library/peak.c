/* Peak throughput of one core: multiply-accumulate chains in registers, and sequential reads.
 * `*_macs` return the multiply-accumulates of a step, 0 where the processor has no instruction for them. */
#include <stdint.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#if defined(__x86_64__)
#define REGISTER "+v"
#elif defined(__aarch64__)
#define REGISTER "+w"
#else
#define REGISTER "+m"
#endif
#define CHAINS 12

typedef float floats __attribute__((vector_size(BYTES)));

/* separate variables, because compilers keep arrays of chains in memory */
#define EACH(STEP) STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9) STEP(10) STEP(11)
#define KEEP(n) __asm__ volatile("" : REGISTER(sum##n));

int64_t peak_float32_macs(void) { return BYTES / 4 * CHAINS; }

void peak_float32(int64_t steps) {
  const floats factor = (floats){0} + 0.999f, addend = (floats){0} + 1e-3f;
#define START(n) floats sum##n = addend;
#define STEP(n) sum##n = sum##n * factor + addend; KEEP(n)
  EACH(START)
  for (int64_t step = 0; step < steps; step++) {
    EACH(STEP)
  }
#undef START
#undef STEP
}

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#define BYTE_MACS 64
#define SUMS __m512i
#define FILLED _mm512_set1_epi8(1)
#define DOT(sum, a) _mm512_dpbusd_epi32(sum, a, a)
#elif defined(__AVXVNNI__)
#include <immintrin.h>
#define BYTE_MACS 32
#define SUMS __m256i
#define FILLED _mm256_set1_epi8(1)
#define DOT(sum, a) _mm256_dpbusd_avx_epi32(sum, a, a)
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>
#define BYTE_MACS 32
#define SUMS int32x4_t
#define FILLED vdupq_n_s8(1)
#define DOT(sum, a) vmmlaq_s32(sum, a, a)
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define BYTE_MACS 16
#define SUMS int32x4_t
#define FILLED vdupq_n_s8(1)
#define DOT(sum, a) vdotq_s32(sum, a, a)
#endif

#if defined(DOT)
int64_t peak_int8_macs(void) { return BYTE_MACS * CHAINS; }

void peak_int8(int64_t steps) {
#define START(n) SUMS sum##n = {0};
#define STEP(n) sum##n = DOT(sum##n, FILLED); KEEP(n)
  EACH(START)
  for (int64_t step = 0; step < steps; step++) {
    EACH(STEP)
  }
#undef START
#undef STEP
}
#else
int64_t peak_int8_macs(void) { return 0; }
void peak_int8(int64_t steps) { (void)steps; }
#endif

/* Products of byte tiles, if the operating system permits them: four accumulators, as in kernels. */
#if defined(__AMX_INT8__) || defined(__AMXINT8__)
#include <immintrin.h>

/* as in the selection of processor levels: `mlf_tiles_permitted` */
#include "levels.h"

int64_t peak_tiles_macs(void) {
  (void)mlf_level_here;
  return mlf_tiles_permitted() ? 4 * 16 * 16 * 64 : 0;
}

void peak_tiles(int64_t steps) {
  static const uint8_t sizes[64] __attribute__((aligned(64))) = {
      1, [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
      [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
  _tile_loadconfig(sizes);
  for (int64_t step = 0; step < steps; step++) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_release();
}
#else
int64_t peak_tiles_macs(void) { return 0; }
void peak_tiles(int64_t steps) { (void)steps; }
#endif

/* Reads blocks of 8 vectors repeatedly. */
int64_t peak_block_bytes(void) { return BYTES * 8; }

void peak_read(const void* memory, int64_t blocks, int64_t rounds) {
  for (int64_t round = 0; round < rounds; round++) {
    const floats* at = (const floats*)memory;
    for (int64_t block = 0; block < blocks; block++, at += 8) {
#define STEP(n) __asm__ volatile("" ::READ(at[n]));
#if defined(__x86_64__)
#define READ(value) "v"(value)
#elif defined(__aarch64__)
#define READ(value) "w"(value)
#else
#define READ(value) "m"(value)
#endif
      STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
#undef STEP
    }
  }
}
