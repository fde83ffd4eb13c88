/* Functions on blocks of bytes (mlfc/tir/block_intrinsics.py), as MVE instructions and portably; the pieces of this
 * file are copied into code that calls them.
 *
 * The loops over filters are written in assembler: sums of vmladava are only in even registers, all of which are
 * needed, and with their own register allocation compilers emit more moves than products. They are whole functions
 * without a compiler-generated prologue, so they do not depend on its choices, and kernels share them. Arguments that
 * do not fit in registers are on the stack: dots1 chunks, fours, half; dots2 weights, chunks, fours, half.
 *
 * The loops over taps: lane i of register j is channel 4 * i + j, so products of even and odd bytes need not be
 * reordered. The sum of two products fits in 16 bits, as no weight of paired_taps is -128; values are read twice, as
 * all registers are in use.
 */

//: assembler
#if defined(__ARM_FEATURE_MVE)
/* a function in assembler alone: compilers must not conclude from its body what it leaves alone */
#if defined(__clang__)
#define MLF_ASSEMBLER __attribute__((naked, noinline))
#else
#define MLF_ASSEMBLER __attribute__((naked, noipa))
#endif
#endif

//: dots1
/* for each four filters, for each row: start + sums of products; weights are in chunks of 16 a filter, and a half */
#if defined(__ARM_FEATURE_MVE)
MLF_ASSEMBLER static void mlf_dots1(
    int32_t *sums __attribute__((unused)),
    const int32_t *start __attribute__((unused)),
    const int8_t *x __attribute__((unused)),
    const int8_t *weights __attribute__((unused)),
    int32_t chunks __attribute__((unused)),
    int32_t fours __attribute__((unused)),
    int32_t half __attribute__((unused))) {
  __asm__ volatile(
    "push {r4, r5, r6, r7, r8, r9, r10, r11, lr}\n"
    "ldrd r8, r11, [sp, #36]\n"
    "ldr r10, [sp, #44]\n"
    "mov r9, r0\n"
    "mov r7, r1\n"
    "mov r1, r3\n"
    "mov r5, r2\n"
    "1: ldmia r7!, {r0, r2, r4, r6}\n"
    "mov r3, r5\n"
    "wls lr, r8, 3f\n"
    "2: vldrb.8 q0, [r3], #16\n"
    "vldrb.8 q2, [r1], #16\n"
    "vmladava.s8 r0, q0, q2\n"
    "vldrb.8 q3, [r1], #16\n"
    "vmladava.s8 r2, q0, q3\n"
    "vldrb.8 q2, [r1], #16\n"
    "vmladava.s8 r4, q0, q2\n"
    "vldrb.8 q3, [r1], #16\n"
    "vmladava.s8 r6, q0, q3\n"
    "le lr, 2b\n"
    "3: cmp r10, #0\n"
    "beq 4f\n"
    "vldrb.s16 q0, [r3]\n"
    "vldrb.s16 q2, [r1], #8\n"
    "vmladava.s16 r0, q0, q2\n"
    "vldrb.s16 q3, [r1], #8\n"
    "vmladava.s16 r2, q0, q3\n"
    "vldrb.s16 q2, [r1], #8\n"
    "vmladava.s16 r4, q0, q2\n"
    "vldrb.s16 q3, [r1], #8\n"
    "vmladava.s16 r6, q0, q3\n"
    "4: vmov q0[2], q0[0], r0, r4\n"
    "vmov q0[3], q0[1], r2, r6\n"
    "vstrw.32 q0, [r9], #16\n"
    "subs r11, r11, #1\n"
    "bne 1b\n"
    "pop {r4, r5, r6, r7, r8, r9, r10, r11, pc}\n"
  );
}
#else
static inline void mlf_dots1(int32_t *sums, const int32_t *start, const int8_t *x, const int8_t *weights, int32_t chunks, int32_t fours, int32_t half) {
  const int32_t size = 16 * chunks + 8 * half;
  for (int32_t four = 0; four < fours; ++four, start += 4, weights += 4 * size) {
      for (int32_t i = 0; i < 4; ++i, ++sums) {
        const int8_t *w = weights + 16 * i;
        int32_t sum = start[i];
        for (int32_t k = 0; k < size; ++k) {
          sum += x[k] * w[k < 16 * chunks ? k % 16 + k / 16 * 64 : k + 48 * chunks - 8 * i];
        }
        *sums = sum;
      }
  }
}
#endif

//: dots2
/* for each four filters, for each row: start + sums of products; weights are in chunks of 16 a filter, and a half */
#if defined(__ARM_FEATURE_MVE)
MLF_ASSEMBLER static void mlf_dots2(
    int32_t *sums __attribute__((unused)),
    const int32_t *start __attribute__((unused)),
    const int8_t *x __attribute__((unused)),
    const int8_t *y __attribute__((unused)),
    const int8_t *weights __attribute__((unused)),
    int32_t chunks __attribute__((unused)),
    int32_t fours __attribute__((unused)),
    int32_t half __attribute__((unused))) {
  __asm__ volatile(
    "push {r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, lr}\n"
    "mov r9, r0\n"
    "ldr r1, [sp, #52]\n"
    "ldr r11, [sp, #60]\n"
    "1: ldr r7, [sp, #4]\n"
    "ldmia r7!, {r0, r2, r4, r6}\n"
    "str r7, [sp, #4]\n"
    "mov r8, r0\n"
    "mov r10, r2\n"
    "mov r12, r4\n"
    "mov lr, r6\n"
    "ldrd r3, r5, [sp, #8]\n"
    "ldr r7, [sp, #56]\n"
    "cbz r7, 3f\n"
    "2: vldrb.8 q0, [r3], #16\n"
    "vldrb.8 q1, [r5], #16\n"
    "vldrb.8 q2, [r1], #16\n"
    "vmladava.s8 r0, q0, q2\n"
    "vmladava.s8 r8, q1, q2\n"
    "vldrb.8 q3, [r1], #16\n"
    "vmladava.s8 r2, q0, q3\n"
    "vmladava.s8 r10, q1, q3\n"
    "vldrb.8 q2, [r1], #16\n"
    "vmladava.s8 r4, q0, q2\n"
    "vmladava.s8 r12, q1, q2\n"
    "vldrb.8 q3, [r1], #16\n"
    "vmladava.s8 r6, q0, q3\n"
    "vmladava.s8 lr, q1, q3\n"
    "subs r7, r7, #1\n"
    "bne 2b\n"
    "3: ldr r7, [sp, #64]\n"
    "cbz r7, 4f\n"
    "vldrb.s16 q0, [r3]\n"
    "vldrb.s16 q1, [r5]\n"
    "vldrb.s16 q2, [r1], #8\n"
    "vmladava.s16 r0, q0, q2\n"
    "vmladava.s16 r8, q1, q2\n"
    "vldrb.s16 q3, [r1], #8\n"
    "vmladava.s16 r2, q0, q3\n"
    "vmladava.s16 r10, q1, q3\n"
    "vldrb.s16 q2, [r1], #8\n"
    "vmladava.s16 r4, q0, q2\n"
    "vmladava.s16 r12, q1, q2\n"
    "vldrb.s16 q3, [r1], #8\n"
    "vmladava.s16 r6, q0, q3\n"
    "vmladava.s16 lr, q1, q3\n"
    "4: vmov q0[2], q0[0], r0, r4\n"
    "vmov q0[3], q0[1], r2, r6\n"
    "vmov q1[2], q1[0], r8, r12\n"
    "vmov q1[3], q1[1], r10, lr\n"
    "vstrw.32 q0, [r9], #16\n"
    "vstrw.32 q1, [r9], #16\n"
    "subs r11, r11, #1\n"
    "bne 1b\n"
    "add sp, sp, #16\n"
    "pop {r4, r5, r6, r7, r8, r9, r10, r11, pc}\n"
  );
}
#else
static inline void mlf_dots2(int32_t *sums, const int32_t *start, const int8_t *x, const int8_t *y, const int8_t *weights, int32_t chunks, int32_t fours, int32_t half) {
  const int32_t size = 16 * chunks + 8 * half;
  for (int32_t four = 0; four < fours; ++four, start += 4, weights += 4 * size) {
      for (int32_t i = 0; i < 4; ++i, ++sums) {
        const int8_t *w = weights + 16 * i;
        int32_t sum = start[i];
        for (int32_t k = 0; k < size; ++k) {
          sum += x[k] * w[k < 16 * chunks ? k % 16 + k / 16 * 64 : k + 48 * chunks - 8 * i];
        }
        *sums = sum;
      }
      for (int32_t i = 0; i < 4; ++i, ++sums) {
        const int8_t *w = weights + 16 * i;
        int32_t sum = start[i];
        for (int32_t k = 0; k < size; ++k) {
          sum += y[k] * w[k < 16 * chunks ? k % 16 + k / 16 * 64 : k + 48 * chunks - 8 * i];
        }
        *sums = sum;
      }
  }
}
#endif

//: taps
/* start + sums over taps of products, for each of 16 channels */
static inline void mlf_taps(
    int32_t *sums, const int32_t *start, const int8_t *values, const int8_t *weights, int32_t taps) {
#if defined(__ARM_FEATURE_MVE)
  __asm__ volatile(
    "vld40.32 {q0, q1, q2, q3}, [%[start]]\n"
    "vld41.32 {q0, q1, q2, q3}, [%[start]]\n"
    "vld42.32 {q0, q1, q2, q3}, [%[start]]\n"
    "vld43.32 {q0, q1, q2, q3}, [%[start]]\n"
    "dls lr, %[taps]\n"
    "1:\n"
    "vldrb.8 q4, [%[values]], #16\n"
    "vldrb.8 q5, [%[weights]], #16\n"
    "vmullb.s8 q6, q4, q5\n"
    "vmullt.s8 q4, q4, q5\n"
    "vmovlb.s16 q5, q6\n"
    "vadd.i32 q0, q0, q5\n"
    "vmovlt.s16 q6, q6\n"
    "vadd.i32 q2, q2, q6\n"
    "vmovlb.s16 q5, q4\n"
    "vadd.i32 q1, q1, q5\n"
    "vmovlt.s16 q4, q4\n"
    "vadd.i32 q3, q3, q4\n"
    "le lr, 1b\n"
    "vst40.32 {q0, q1, q2, q3}, [%[sums]]\n"
    "vst41.32 {q0, q1, q2, q3}, [%[sums]]\n"
    "vst42.32 {q0, q1, q2, q3}, [%[sums]]\n"
    "vst43.32 {q0, q1, q2, q3}, [%[sums]]\n"
    : [values] "+r"(values), [weights] "+r"(weights)
    : [sums] "r"(sums), [start] "r"(start), [taps] "r"(taps)
    : "q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "lr", "memory");
#else
  for (int32_t channel = 0; channel < 16; ++channel) {
    int32_t sum = start[channel];
    for (int32_t tap = 0; tap < taps; ++tap) {
      sum += values[16 * tap + channel] * weights[16 * tap + channel];
    }
    sums[channel] = sum;
  }
#endif
}

//: paired_taps
/* start + sums over taps of products, for each of 16 channels */
static inline void mlf_paired_taps(
    int32_t *sums, const int32_t *start, const int8_t *values, const int8_t *weights, int32_t taps) {
#if defined(__ARM_FEATURE_MVE)
  __asm__ volatile(
    "vld40.32 {q0, q1, q2, q3}, [%[start]]\n"
    "vld41.32 {q0, q1, q2, q3}, [%[start]]\n"
    "vld42.32 {q0, q1, q2, q3}, [%[start]]\n"
    "vld43.32 {q0, q1, q2, q3}, [%[start]]\n"
    "wls lr, %[pairs], 2f\n"
    "1:\n"
    "vldrb.8 q4, [%[values]], #16\n"
    "vldrb.8 q5, [%[weights]], #16\n"
    "vmullb.s8 q6, q4, q5\n"
    "vmullt.s8 q4, q4, q5\n"
    "vldrb.8 q5, [%[values]]\n"
    "vldrb.8 q7, [%[weights]], #16\n"
    "vmullb.s8 q5, q5, q7\n"
    "vadd.i16 q6, q6, q5\n"
    "vldrb.8 q5, [%[values]], #16\n"
    "vmullt.s8 q5, q5, q7\n"
    "vadd.i16 q4, q4, q5\n"
    "vmovlb.s16 q5, q6\n"
    "vadd.i32 q0, q0, q5\n"
    "vmovlt.s16 q6, q6\n"
    "vadd.i32 q2, q2, q6\n"
    "vmovlb.s16 q5, q4\n"
    "vadd.i32 q1, q1, q5\n"
    "vmovlt.s16 q4, q4\n"
    "vadd.i32 q3, q3, q4\n"
    "le lr, 1b\n"
    "2: cbz %[odd], 3f\n"
    "vldrb.8 q4, [%[values]], #16\n"
    "vldrb.8 q5, [%[weights]], #16\n"
    "vmullb.s8 q6, q4, q5\n"
    "vmullt.s8 q4, q4, q5\n"
    "vmovlb.s16 q5, q6\n"
    "vadd.i32 q0, q0, q5\n"
    "vmovlt.s16 q6, q6\n"
    "vadd.i32 q2, q2, q6\n"
    "vmovlb.s16 q5, q4\n"
    "vadd.i32 q1, q1, q5\n"
    "vmovlt.s16 q4, q4\n"
    "vadd.i32 q3, q3, q4\n"
    "3:\n"
    "vst40.32 {q0, q1, q2, q3}, [%[sums]]\n"
    "vst41.32 {q0, q1, q2, q3}, [%[sums]]\n"
    "vst42.32 {q0, q1, q2, q3}, [%[sums]]\n"
    "vst43.32 {q0, q1, q2, q3}, [%[sums]]\n"
    : [values] "+r"(values), [weights] "+r"(weights)
    : [sums] "r"(sums), [start] "r"(start), [pairs] "r"(taps / 2), [odd] "l"(taps % 2)
    : "q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "lr", "memory");
#else
  for (int32_t channel = 0; channel < 16; ++channel) {
    int32_t sum = start[channel];
    for (int32_t tap = 0; tap < taps; ++tap) {
      sum += values[16 * tap + channel] * weights[16 * tap + channel];
    }
    sums[channel] = sum;
  }
#endif
}

//: copy_run
static inline void mlf_copy_run(int8_t *restrict to, const int8_t *restrict from, int32_t size) {
#if defined(__ARM_FEATURE_MVE)
  int32_t done = 0;
  for (; done + 16 <= size; done += 16) {
    vstrbq_s8(to + done, vldrbq_s8(from + done));
  }
  if (done < size) {
    const mve_pred16_t rest = vctp8q((uint32_t)(size - done));
    vstrbq_p_s8(to + done, vldrbq_z_s8(from + done, rest), rest);
  }
#else
  memcpy(to, from, (size_t)size);
#endif
}

//: fill_run
static inline void mlf_fill_run(int8_t *to, int8_t value, int32_t size) {
#if defined(__ARM_FEATURE_MVE)
  const int8x16_t values = vdupq_n_s8(value);
  int32_t done = 0;
  for (; done + 16 <= size; done += 16) {
    vstrbq_s8(to + done, values);
  }
  if (done < size) {
    vstrbq_p_s8(to + done, values, vctp8q((uint32_t)(size - done)));
  }
#else
  memset(to, value, (size_t)size);
#endif
}
