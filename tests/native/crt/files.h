/* Reads whole files, for the test programs in this folder. */
#ifndef TESTS_CRT_FILES_H_
#define TESTS_CRT_FILES_H_

#include "require.h"

/* Returns a file's bytes, followed by a NUL. */
static char* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  REQUIRE(file != NULL && fseek(file, 0, SEEK_END) == 0);
  const long length = ftell(file);
  REQUIRE(length >= 0);
  rewind(file);
  char* bytes = (char*)malloc((size_t)length + 1);
  REQUIRE(bytes != NULL && fread(bytes, 1, (size_t)length, file) == (size_t)length);
  bytes[length] = '\0';
  fclose(file);
  *size = (size_t)length;
  return bytes;
}

#endif
