/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Data structures of the graph executor */
#ifndef TVM_RUNTIME_CRT_GRAPH_EXECUTOR_EXECUTOR_H_
#define TVM_RUNTIME_CRT_GRAPH_EXECUTOR_EXECUTOR_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/error_codes.h>
#include <tvm/runtime/crt/graph_executor.h>

#include "../common/tensor.h"

/*! \brief An operator with the values and type codes of its arguments. */
typedef struct {
  TVMBackendPackedCFunc function;
  TVMValue* values;
  int* codes;
  int num_args;
} Call;

/*! \brief Memory that tensors share. */
typedef struct {
  AlignedBlock block;
  /*! \brief Data of the tensors: in `block`, or linked parameters; NULL until needed. */
  void* data;
  /*! \brief The size of the largest tensor in it. */
  size_t bytes;
  /*! \brief Whether an operator writes to it. */
  bool written;
} Storage;

typedef struct {
  const char* name;
  uint32_t tensor;
} Input;

struct TVMGraphExecutor {
  uint32_t num_inputs;
  Input* inputs;
  uint32_t num_outputs;
  uint32_t* outputs;
  uint32_t num_calls;
  Call* calls;
  /*! \brief One per entry of the graph, then one-dimensional views for operators with flattened arguments. */
  uint32_t num_tensors;
  DLTensor* tensors;
  uint32_t* storage_of_tensor;
  uint32_t num_storages;
  Storage* storages;
  /*! \brief Whether every storage has memory. */
  bool complete;
};

/*! \brief Allocates a storage's own memory and copies its present content; fails if memory is exhausted. */
tvm_crt_error_t storage_own(TVMGraphExecutor* executor, uint32_t id);

/*! \brief Allocates memory for every storage without it. */
tvm_crt_error_t storage_complete(TVMGraphExecutor* executor);

/*! \brief Whether tensors of a storage may point to external read-only memory of `bytes` bytes. */
bool storage_can_link(const TVMGraphExecutor* executor, uint32_t id, size_t bytes);

/*! \brief Makes a storage's tensors point to `data`, which is read-only, and frees its own memory. */
void storage_link(TVMGraphExecutor* executor, uint32_t id, const void* data);

/*! \brief Returns whether bytes lie in one of the executor's own storages. */
bool storage_holds(const TVMGraphExecutor* executor, const void* address, size_t num_bytes);

/*! \brief Copies a tensor to an input, unlike TVMGraphExecutor_SetInput, which uses it in place. */
tvm_crt_error_t copy_input(TVMGraphExecutor* executor, int32_t index, const DLTensor* from);

#endif /* TVM_RUNTIME_CRT_GRAPH_EXECUTOR_EXECUTOR_H_ */
