/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*!
 * \brief Reads JSON by walking over its text: no tree, no recursion, no memory
 *
 * After the first error every function does nothing and returns zero or false, so callers check `error` once.
 */
#ifndef TVM_RUNTIME_CRT_GRAPH_EXECUTOR_LOAD_JSON_H_
#define TVM_RUNTIME_CRT_GRAPH_EXECUTOR_LOAD_JSON_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/error_codes.h>

/*! \brief Size of the buffers for keys; a longer key reads as an empty one, which no reader uses. */
enum { JSON_KEY_SIZE = 24 };

typedef struct {
  const char* begin;
  const char* at;
  tvm_crt_error_t error;
} JsonReader;

JsonReader json_reader(const char* text);

/*! \brief Stops reading with an error, whose text is prefixed by the position. Only the first error is kept. */
void json_fail(JsonReader* reader, tvm_crt_error_t code, const char* format, ...);

/*!
 * \brief Moves to the next element of the list or object that `close` ends.
 * \param count Elements so far; 0 before the first call, which expects the opening bracket.
 * \return False at the end, which is then skipped, and after an error.
 */
bool json_next(JsonReader* reader, char close, uint32_t* count);

/*! \brief Reads an object's key and the colon. */
void json_key(JsonReader* reader, char key[JSON_KEY_SIZE]);

/*! \brief Reads a string into a buffer; fails, naming `limit`, if it does not fit. */
void json_string(JsonReader* reader, char* out, size_t size, const char* limit);

/*! \brief Skips a string and returns its start, for a later json_string. */
const char* json_string_position(JsonReader* reader);

/*! \brief Reads a decimal integer from 0 to `maximum`. */
uint64_t json_unsigned(JsonReader* reader, uint64_t maximum);

/*! \brief Skips any value. */
void json_skip(JsonReader* reader);

/*! \brief Expects the end of the text. */
void json_end(JsonReader* reader);

#endif /* TVM_RUNTIME_CRT_GRAPH_EXECUTOR_LOAD_JSON_H_ */
