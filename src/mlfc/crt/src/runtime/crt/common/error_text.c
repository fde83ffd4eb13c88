/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "error_text.h"

#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_runtime_api.h>

#include "config.h"
#include "context.h"

static TVM_CRT_THREAD_LOCAL char last_error[TVM_CRT_MAX_STRLEN_ERROR_TEXT];

/* Position of the next character; text that does not fit is truncated. */
typedef struct {
  size_t length;
} Text;

static void put_char(Text* text, char c) {
  if (text->length + 1 < sizeof(last_error)) last_error[text->length++] = c;
}

static void put_string(Text* text, const char* s) {
  while (*s != '\0') put_char(text, *s++);
}

static void put_number(Text* text, uint32_t value) {
  char digits[10];
  size_t count = 0;
  do {
    digits[count++] = (char)('0' + value % 10);
    value /= 10;
  } while (value != 0);
  while (count > 0) put_char(text, digits[--count]);
}

static void put_format(Text* text, const char* format, va_list args) {
  for (; *format != '\0'; ++format) {
    if (format[0] == '%' && format[1] == 's') {
      put_string(text, va_arg(args, const char*));
      ++format;
    } else if (format[0] == '%' && format[1] == 'u') {
      put_number(text, va_arg(args, uint32_t));
      ++format;
    } else {
      put_char(text, *format);
    }
  }
}

/* Terminates the text, and passes it to the process that loaded the library, if requested. */
static void finish(const Text* text) {
  last_error[text->length] = '\0';
#if TVM_CRT_CONTEXT_POINTERS
  if (__TVMAPISetLastError != NULL) __TVMAPISetLastError(last_error);
#endif
}

tvm_crt_error_t tvm_crt_fail_at(tvm_crt_error_t code, const char* place, const char* format, va_list args) {
  Text text = {0};
  put_string(&text, place);
  put_format(&text, format, args);
  finish(&text);
  return code;
}

tvm_crt_error_t tvm_crt_fail(tvm_crt_error_t code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  tvm_crt_fail_at(code, "", format, args);
  va_end(args);
  return code;
}

void TVMAPISetLastError(const char* msg) {
  Text text = {0};
  /* Setting the text that TVMGetLastError returned does not change it. */
  if (msg == last_error) return;
  if (msg != NULL) put_string(&text, msg);
  finish(&text);
}

const char* TVMGetLastError(void) { return last_error; }
