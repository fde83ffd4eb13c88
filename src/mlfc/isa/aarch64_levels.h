#if defined(__APPLE__)
#include <stddef.h>
#include <sys/sysctl.h>
#elif defined(_WIN32)
#include <windows.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#if defined(__APPLE__)
static int mlf_has(const char *name) {
  int found = 0;
  size_t size = sizeof found;
  return sysctlbyname(name, &found, &size, NULL, 0) == 0 && found != 0;
}
#endif

/* 3 for SVE with vectors of 256 bits, 2 for products of matrices of bytes, 1 for dot products of bytes, 0 for neither */
static int mlf_level_here(void) {
#if defined(__APPLE__)
  const int vectors = 0;
  const int dots = mlf_has("hw.optional.arm.FEAT_DotProd");
  const int matrices = mlf_has("hw.optional.arm.FEAT_I8MM");
#elif defined(_WIN32)
  const int vectors = 0;
  const int dots = IsProcessorFeaturePresent(43) != 0;     /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE */
  const int matrices = IsProcessorFeaturePresent(66) != 0; /* PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE */
#elif defined(__linux__)
  /* CRC32, ATOMICS, ASIMDRDM, which come with Armv8.2, and ASIMDDP */
  const unsigned long known = 1UL << 7 | 1UL << 8 | 1UL << 12 | 1UL << 20;
  const int dots = (getauxval(AT_HWCAP) & known) == known;
  const int matrices = (getauxval(26) & 1UL << 13) != 0; /* AT_HWCAP2, I8MM */
  /* SVE; PR_SVE_GET_VL returns the bytes of a vector that this thread has, and its flags above 16 bits */
  const int vectors = (getauxval(AT_HWCAP) & 1UL << 22) != 0 && (prctl(51, 0, 0, 0, 0) & 0xffff) == 32;
#else
  const int dots = 0, matrices = 0, vectors = 0;
#endif
  return dots ? matrices ? vectors ? 3 : 2 : 1 : 0;
}
