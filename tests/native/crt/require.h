/* Assertions of the test programs in this folder: a false condition ends the program with a message. */
#ifndef TESTS_CRT_REQUIRE_H_
#define TESTS_CRT_REQUIRE_H_

#include <stdio.h>
#include <stdlib.h>
#include <tvm/runtime/c_runtime_api.h>

#define REQUIRE(condition)                                                                     \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "%s:%d: %s is not so; the last error was: %s\n", __FILE__, __LINE__, #condition, \
              TVMGetLastError());                                                              \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

#endif
