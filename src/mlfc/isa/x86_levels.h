/* 3 for x86-64-v4 with VNNI and tiles, 2 for it without tiles, 1 for x86-64-v3, 0 for less: what the processor has and the operating system saves */
static int mlf_level_here(void) {
  const unsigned int v3_1 = 1U << 0 | 1U << 9 | 1U << 12 | 1U << 13 | 1U << 19 | 1U << 20 | 1U << 22 | 1U << 23 |
                            1U << 27 | 1U << 28 | 1U << 29; /* SSE3 to SSE4.2, FMA, MOVBE, POPCNT, XSAVE, AVX, F16C */
  const unsigned int v3_7 = 1U << 3 | 1U << 5 | 1U << 8;    /* BMI, AVX2, BMI2 */
  const unsigned int v3_x = 1U << 0 | 1U << 5;              /* LAHF, LZCNT */
  const unsigned int v4_7 = 1U << 16 | 1U << 17 | 1U << 28 | 1U << 30 | 1U << 31; /* AVX-512 F, DQ, CD, BW, VL */
  const unsigned int vnni = 1U << 11;
  unsigned int a, b, c, d, x, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & v3_1) != v3_1 || !__get_cpuid(0x80000001U, &a, &b, &x, &d) ||
      !__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    return 0;
  }
  __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((b & v3_7) != v3_7 || (x & v3_x) != v3_x || (low & 0x6U) != 0x6U) {
    return 0;
  }
  if ((b & v4_7) != v4_7 || (c & vnni) != vnni || (low & 0xe6U) != 0xe6U) {
    return 1;
  }
  return mlf_tiles_permitted() ? 3 : 2;
}
