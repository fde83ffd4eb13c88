#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Whether this program may use tiles: the processor has them, and Linux gives the program the memory in which it keeps
 * them when threads take turns. All threads may from then on, and so may the processes that they become by fork. A
 * program can answer itself by MLF_TILES_PERMITTED.
 */
static int mlf_tiles_permitted(void) {
#if defined(MLF_TILES_PERMITTED)
  return MLF_TILES_PERMITTED;
#elif defined(__x86_64__) && defined(__linux__) && defined(__LP64__)
  const unsigned int tiles = 1U << 22 | 1U << 24 | 1U << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
  unsigned int a, b, c, d, low, high;
  long answer;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & 1U << 27) == 0 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
      (d & tiles) != tiles) {
    return 0;
  }
  __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0x60000U) != 0x60000U) {
    return 0;
  }
  /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), which headers of C99 do not declare */
  __asm__ __volatile__("syscall" : "=a"(answer) : "0"(158L), "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
  return answer == 0;
#else
  return 0;
#endif
}
