/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Error codes with a text */
#ifndef TVM_RUNTIME_CRT_COMMON_ERROR_TEXT_H_
#define TVM_RUNTIME_CRT_COMMON_ERROR_TEXT_H_

#include <stdarg.h>
#include <tvm/runtime/crt/error_codes.h>

/*!
 * \brief Sets the error text and returns the code.
 * \param code The code to return.
 * \param format Text with %s (const char*) and %u (uint32_t), so that firmware need not link printf.
 */
tvm_crt_error_t tvm_crt_fail(tvm_crt_error_t code, const char* format, ...);

/*! \brief Does the same with an argument list, after a prefix that names the place. */
tvm_crt_error_t tvm_crt_fail_at(tvm_crt_error_t code, const char* place, const char* format, va_list args);

#endif /* TVM_RUNTIME_CRT_COMMON_ERROR_TEXT_H_ */
