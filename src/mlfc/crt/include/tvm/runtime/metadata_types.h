/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Tables that describe a model with the packed AOT interface */
#ifndef TVM_RUNTIME_METADATA_TYPES_H_
#define TVM_RUNTIME_METADATA_TYPES_H_

#include <stdint.h>
#include <tvm/runtime/c_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Version of these tables: TVMMetadata.version. */
#define TVM_METADATA_VERSION 1

struct TVMTensorInfo {
  const char* name;
  const int64_t* shape;
  int64_t num_shape;
  DLDataType dtype;
};

/*! \brief Constants of a pool; data_bytes is an array in the format of parameter files. */
struct TVMConstantInfo {
  const char* name_hint;
  int64_t byte_offset;
  int64_t data_len;
  const void* data_bytes;
};

struct TVMMetadata {
  int64_t version;
  const struct TVMTensorInfo* inputs;
  int64_t num_inputs;
  const struct TVMTensorInfo* outputs;
  int64_t num_outputs;
  const struct TVMTensorInfo* workspace_pools;
  int64_t num_workspace_pools;
  const struct TVMConstantInfo* constant_pools;
  int64_t num_constant_pools;
  /*! \brief Prefix of the module's symbols: tvmgen_<module>. */
  const char* mod_name;
};

#ifndef __cplusplus
typedef struct TVMTensorInfo TVMTensorInfo;
typedef struct TVMConstantInfo TVMConstantInfo;
typedef struct TVMMetadata TVMMetadata;
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_METADATA_TYPES_H_ */
