/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Reads a parameter file in place */
#ifndef TVM_RUNTIME_CRT_GRAPH_EXECUTOR_LOAD_PARAMS_H_
#define TVM_RUNTIME_CRT_GRAPH_EXECUTOR_LOAD_PARAMS_H_

#include <dlpack/dlpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/error_codes.h>

#include "../common/config.h"

/*! \brief An array of the file. */
typedef struct {
  char name[TVM_CRT_MAX_STRLEN_PARAM_NAME];
  DLDataType dtype;
  int32_t ndim;
  int64_t shape[TVM_CRT_MAX_NDIM];
  /*! \brief Its elements, without alignment. */
  const char* data;
  size_t bytes;
} Param;

typedef struct {
  const uint8_t* begin;
  const uint8_t* end;
  /*! \brief The next name and the next array. */
  const uint8_t* name;
  const uint8_t* array;
  uint64_t left;
  tvm_crt_error_t error;
} ParamsReader;

/*! \brief Starts reading; errors are in `error` after params_next. Bytes after the last array are ignored. */
ParamsReader params_reader(const char* blob, size_t size);

/*! \brief Reads the next array; false after the last one, and after an error. */
bool params_next(ParamsReader* reader, Param* param);

#endif /* TVM_RUNTIME_CRT_GRAPH_EXECUTOR_LOAD_PARAMS_H_ */
