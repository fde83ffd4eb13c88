/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Logging, and checks that abort the program, compatible with firmware for microTVM */
#ifndef TVM_RUNTIME_CRT_LOGGING_H_
#define TVM_RUNTIME_CRT_LOGGING_H_

#include <tvm/runtime/crt/platform.h>

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Writes a formatted line to the log; implemented by the platform, or by the RPC server for the host. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void TVMLogf(const char* fmt, ...);

#ifdef __cplusplus
} /* extern "C" */
#endif

/*! \brief Logs the condition and aborts unless it is true. */
#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) {                                                \
      TVMLogf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      TVMPlatformAbort(kTvmErrorPlatformCheckFailure);                 \
    }                                                                  \
  } while (0)

/* The format and its arguments follow. Variadic macros require C++11. */
#if !defined(__cplusplus) || __cplusplus >= 201103L
#define TVM_CRT_CHECK_THAT(condition, ...)             \
  do {                                                 \
    if (!(condition)) {                                \
      TVMLogf(__VA_ARGS__);                            \
      TVMPlatformAbort(kTvmErrorPlatformCheckFailure); \
    }                                                  \
  } while (0)

/*! \brief Compare two values; log a formatted text and abort if the comparison is false. */
#define CHECK_EQ(x, y, ...) TVM_CRT_CHECK_THAT((x) == (y), __VA_ARGS__)
#define CHECK_NE(x, y, ...) TVM_CRT_CHECK_THAT((x) != (y), __VA_ARGS__)
#define CHECK_LT(x, y, ...) TVM_CRT_CHECK_THAT((x) < (y), __VA_ARGS__)
#define CHECK_LE(x, y, ...) TVM_CRT_CHECK_THAT((x) <= (y), __VA_ARGS__)
#define CHECK_GT(x, y, ...) TVM_CRT_CHECK_THAT((x) > (y), __VA_ARGS__)
#define CHECK_GE(x, y, ...) TVM_CRT_CHECK_THAT((x) >= (y), __VA_ARGS__)
#endif

#endif /* TVM_RUNTIME_CRT_LOGGING_H_ */
