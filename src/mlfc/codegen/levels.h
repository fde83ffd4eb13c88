/* Text of generated C that selects kernels for several processor levels. Code generation replaces `$` and the name
 * after it.
 */

//: choice
#if $condition
#include <stdio.h>
#include <stdlib.h>

$here

/* the index of the level whose kernels are called; -1 if the level that $variable requests is not available */
static int mlf_level;

static const char *const mlf_levels[] = {$names};

/* chooses when the library is loaded; until then kernels are those for all processors */
__attribute__((constructor)) static void mlf_choose_level(void) {
  const char *const asked = getenv("$variable");
  const int here = mlf_level_here();
  mlf_level = here;
  if (asked != NULL && asked[0] != '\0') {
    for (mlf_level = here; mlf_level >= 0 && strcmp(mlf_levels[mlf_level], asked) != 0; --mlf_level) {
    }
    if (mlf_level < 0) {
      (void)fprintf(stderr, "mlfc: expected one of the levels that this processor has, got $variable=%.40s:", asked);
      for (int level = 0; level <= here; ++level) {
        (void)fprintf(stderr, " %s", mlf_levels[level]);
      }
      (void)fputs("\n", stderr);
    }
  }
}

//: section
#if defined(__ELF__)
#define MLF_OF_LEVEL __attribute__((noinline, section("$section")))
#else
#define MLF_OF_LEVEL
#endif

//: name
/* the name of the level whose kernels are called; NULL if the level that $variable requests is not available */
const char *$function(void);
const char *$function(void) {
#if $condition
  return mlf_level < 0 ? NULL : mlf_levels[mlf_level];
#else
  return "";
#endif
}
