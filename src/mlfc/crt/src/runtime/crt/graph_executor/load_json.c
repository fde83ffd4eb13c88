/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include "load_json.h"

#include <stdarg.h>
#include <string.h>

#include "../common/error_text.h"

/* Open brackets in json_skip, one bit each. Graphs nest values four deep. */
enum { MAX_DEPTH = 32 };

JsonReader json_reader(const char* text) {
  JsonReader reader = {text, text, kTvmErrorNoError};
  return reader;
}

void json_fail(JsonReader* reader, tvm_crt_error_t code, const char* format, ...) {
  static const char before[] = "graph JSON, byte ";
  char place[sizeof(before) + 12];
  char digits[10];
  size_t length = sizeof(before) - 1;
  size_t count = 0;
  uint32_t offset = (uint32_t)(reader->at - reader->begin);
  va_list args;
  if (reader->error != kTvmErrorNoError) return;
  memcpy(place, before, length);
  do {
    digits[count++] = (char)('0' + offset % 10);
    offset /= 10;
  } while (offset != 0);
  while (count > 0) place[length++] = digits[--count];
  memcpy(place + length, ": ", sizeof(": "));
  va_start(args, format);
  reader->error = tvm_crt_fail_at(code, place, format, args);
  va_end(args);
}

static void refuse(JsonReader* reader, const char* expected) {
  json_fail(reader, kTvmErrorDataGraphInvalid, "%s is expected", expected);
}

/* Skips white space and returns the next character; NUL at the end and after an error. */
static char peek(JsonReader* reader) {
  if (reader->error != kTvmErrorNoError) return '\0';
  while (*reader->at == ' ' || *reader->at == '\n' || *reader->at == '\r' || *reader->at == '\t') ++reader->at;
  return *reader->at;
}

static bool expect(JsonReader* reader, char c) {
  const char text[] = {c, '\0'};
  if (peek(reader) != c) {
    refuse(reader, text);
    return false;
  }
  ++reader->at;
  return true;
}

bool json_next(JsonReader* reader, char close, uint32_t* count) {
  if (*count == 0 && !expect(reader, close == '}' ? '{' : '[')) return false;
  if (peek(reader) == close) {
    ++reader->at;
    return false;
  }
  if (*count > 0 && !expect(reader, ',')) return false;
  if (*count == UINT32_MAX) refuse(reader, "an end");
  ++*count;
  return reader->error == kTvmErrorNoError;
}

/* Returns the character of an escape after its backslash. */
static char escaped(JsonReader* reader, char c) {
  switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'b': return '\b';
    case 'f': return '\f';
    case '"':
    case '\\':
    case '/': return c;
    default:
      json_fail(reader, kTvmErrorDataGraphInvalid, "only the escapes \\n \\r \\t \\b \\f \\\" \\\\ \\/ are known");
      return '\0';
  }
}

/* Reads a string, truncated to the buffer. Returns its full length. */
static size_t read_string(JsonReader* reader, char* out, size_t size) {
  size_t length = 0;
  if (!expect(reader, '"')) return 0;
  while (*reader->at != '"') {
    char c = *reader->at;
    if ((unsigned char)c < ' ') {
      refuse(reader, "the end of a string");
      return 0;
    }
    ++reader->at;
    if (c == '\\') {
      c = escaped(reader, *reader->at);
      if (reader->error != kTvmErrorNoError) return 0;
      ++reader->at;
    }
    if (length < size) out[length] = c;
    ++length;
  }
  ++reader->at;
  return length;
}

void json_key(JsonReader* reader, char key[JSON_KEY_SIZE]) {
  const size_t length = read_string(reader, key, JSON_KEY_SIZE - 1);
  key[length < JSON_KEY_SIZE ? length : 0] = '\0';
  expect(reader, ':');
}

void json_string(JsonReader* reader, char* out, size_t size, const char* limit) {
  const size_t length = read_string(reader, out, size - 1);
  if (length >= size) {
    json_fail(reader, kTvmErrorDataLimitExceeded, "a text of %u characters is longer than %s allows", (uint32_t)length,
              limit);
  }
  out[reader->error == kTvmErrorNoError ? length : 0] = '\0';
}

const char* json_string_position(JsonReader* reader) {
  peek(reader);
  const char* position = reader->at;
  read_string(reader, NULL, 0);
  return position;
}

uint64_t json_unsigned(JsonReader* reader, uint64_t maximum) {
  uint64_t value = 0;
  const char c = peek(reader);
  if (c < '0' || c > '9') refuse(reader, "a decimal integer, not negative,");
  while (reader->error == kTvmErrorNoError && *reader->at >= '0' && *reader->at <= '9') {
    const uint64_t digit = (uint64_t)(*reader->at - '0');
    if (digit > maximum || value > (maximum - digit) / 10) {
      json_fail(reader, kTvmErrorDataGraphInvalid, "the number is too large");
      return 0;
    }
    value = value * 10 + digit;
    ++reader->at;
  }
  if (*reader->at == '.' || *reader->at == 'e' || *reader->at == 'E') refuse(reader, "an integer");
  return reader->error == kTvmErrorNoError ? value : 0;
}

/* Skips true, false, null or a number of any form. */
static void skip_word(JsonReader* reader) {
  const char* start = reader->at;
  while ((*reader->at >= '0' && *reader->at <= '9') || (*reader->at >= 'a' && *reader->at <= 'z') ||
         *reader->at == '-' || *reader->at == '+' || *reader->at == '.' || *reader->at == 'E') {
    ++reader->at;
  }
  if (reader->at == start) refuse(reader, "a value");
}

void json_skip(JsonReader* reader) {
  uint32_t counts[MAX_DEPTH];
  bool objects[MAX_DEPTH];
  char key[JSON_KEY_SIZE];
  size_t depth = 0;
  do {
    const char c = peek(reader);
    if (c == '{' || c == '[') {
      if (depth == MAX_DEPTH) {
        json_fail(reader, kTvmErrorDataGraphInvalid, "values are nested too deep");
        return;
      }
      objects[depth] = c == '{';
      counts[depth++] = 0;
    } else if (c == '"') {
      read_string(reader, NULL, 0);
    } else {
      skip_word(reader);
    }
    while (depth > 0 && !json_next(reader, objects[depth - 1] ? '}' : ']', &counts[depth - 1])) --depth;
    if (depth > 0 && objects[depth - 1]) json_key(reader, key);
  } while (depth > 0 && reader->error == kTvmErrorNoError);
}

void json_end(JsonReader* reader) {
  if (peek(reader) != '\0') refuse(reader, "the end of the text");
}
