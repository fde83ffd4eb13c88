/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Functions of the platform, which firmware must implement */
#ifndef TVM_RUNTIME_CRT_PLATFORM_H_
#define TVM_RUNTIME_CRT_PLATFORM_H_

#include <dlpack/dlpack.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/error_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

/*!
 * \brief Writes a formatted text.
 * \return The length of the text, as in vsnprintf.
 */
size_t TVMPlatformFormatMessage(char* out_buf, size_t out_buf_size_bytes, const char* fmt, va_list args);

/*! \brief Stops the program or resets the board; must not return. */
#if defined(__GNUC__)
__attribute__((noreturn))
#endif
void TVMPlatformAbort(tvm_crt_error_t code);

/*! \brief Allocates memory, aligned for every type of the machine, preferably to 16 bytes. */
tvm_crt_error_t TVMPlatformMemoryAllocate(size_t num_bytes, DLDevice dev, void** out_ptr);

/*! \brief Frees memory of TVMPlatformMemoryAllocate. */
tvm_crt_error_t TVMPlatformMemoryFree(void* ptr, DLDevice dev);

/*! \brief Starts the only timer. */
tvm_crt_error_t TVMPlatformTimerStart(void);

/*! \brief Stops the timer and returns the seconds since it started. */
tvm_crt_error_t TVMPlatformTimerStop(double* elapsed_time_seconds);

/*! \brief Called before a function is timed, for example to flush caches or to raise a pin. */
tvm_crt_error_t TVMPlatformBeforeMeasurement(void);

/*! \brief Called after a function was timed. */
tvm_crt_error_t TVMPlatformAfterMeasurement(void);

/*! \brief Fills a buffer with random bytes that differ after each reset. */
tvm_crt_error_t TVMPlatformGenerateRandom(uint8_t* buffer, size_t num_bytes);

/*! \brief Initializes clocks, serial lines and memory; the firmware calls it first. */
tvm_crt_error_t TVMPlatformInitialize(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_PLATFORM_H_ */
