/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Runs a graph: a list of calls in JSON */
#ifndef TVM_RUNTIME_CRT_GRAPH_EXECUTOR_H_
#define TVM_RUNTIME_CRT_GRAPH_EXECUTOR_H_

#include <dlpack/dlpack.h>
#include <stdint.h>
#include <tvm/runtime/c_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TVMGraphExecutor TVMGraphExecutor;

/*!
 * \brief Reads a graph, allocates its storage and finds its functions.
 *
 * The graph is checked completely, and runs do not look anything up. The text may be freed afterwards.
 *
 * \param sym_json The graph, terminated by NUL.
 * \param module_handle The module whose functions the graph calls.
 * \param devices The device of all storage: kDLCPU, 0.
 * \param executor The executor; NULL on failure.
 * \return 0, or an error code; TVMGetLastError returns the details.
 */
TVM_DLL int TVMGraphExecutor_Create(const char* sym_json, TVMModuleHandle module_handle, const DLDevice* devices,
                                    TVMGraphExecutor** executor);

/*! \brief Returns the index of an input or parameter by name; -1 if not found. */
TVM_DLL int TVMGraphExecutor_GetInputIndex(TVMGraphExecutor* executor, const char* name);

/*! \brief Returns the number of inputs, parameters included. */
TVM_DLL int TVMGraphExecutor_GetNumInputs(TVMGraphExecutor* executor);

/*! \brief Returns the number of outputs. */
TVM_DLL int TVMGraphExecutor_GetNumOutputs(TVMGraphExecutor* executor);

/*!
 * \brief Makes the graph read an input in place, as microTVM does.
 *
 * The tensor's data must exist until the last run that reads it, and may change between runs; the DLTensor itself may
 * be freed. To copy instead, write to the tensor that TVMGraphExecutor_GetInput returns. If operators write
 * to the input's storage, or it is shared with larger tensors, this copies the data once per call.
 *
 * \param executor The executor.
 * \param name Name of the input or parameter.
 * \param data_in A compact tensor of the same dtype and number of elements.
 */
TVM_DLL int TVMGraphExecutor_SetInput(TVMGraphExecutor* executor, const char* name, DLTensor* data_in);

/*!
 * \brief Returns the executor's tensor of an input or parameter, to fill it without a copy.
 *
 * After TVMGraphExecutor_SetInput its data is the caller's; that of parameters linked by TVMGraphExecutor_LinkParams is
 * read only.
 */
TVM_DLL int TVMGraphExecutor_GetInput(TVMGraphExecutor* executor, int32_t index, DLTensor** tensor);

/*!
 * \brief Returns an output.
 * \param executor The executor.
 * \param index Position of the output.
 * \param out A compact tensor of the output's dtype and number of elements, to which the output is copied. If its data
 *            is NULL, it becomes a view of the executor's tensor, valid until the executor is released.
 */
TVM_DLL int TVMGraphExecutor_GetOutput(TVMGraphExecutor* executor, const int32_t index, DLTensor* out);

/*! \brief Copies the parameters of a parameter file into the graph's storage. */
TVM_DLL int TVMGraphExecutor_LoadParams(TVMGraphExecutor* executor, const char* param_blob,
                                        const uint32_t param_size);

/*!
 * \brief Uses the parameters of a parameter file in place, for example in flash.
 *
 * The file must stay unchanged until the executor is released. Parameter files do not align data: an array is used in
 * place if its address happens to be a multiple of `alignment` and of its element size (at most 8), which is always
 * true for one-byte elements with an alignment of 1. Other arrays, and those whose storage the graph writes to, are
 * copied as TVMGraphExecutor_LoadParams does. Storage is allocated when it is first needed, so linked parameters use
 * no memory if this is called before they are loaded or set.
 *
 * \param executor The executor.
 * \param param_blob The file.
 * \param param_size Its size in bytes.
 * \param alignment Alignment that operators require: 1 for plain C, more for vector code. A power of two.
 * \param num_linked Receives the number of arrays used in place; may be NULL.
 */
TVM_DLL int TVMGraphExecutor_LinkParams(TVMGraphExecutor* executor, const char* param_blob, const uint32_t param_size,
                                        uint32_t alignment, uint32_t* num_linked);

/*! \brief Runs the graph; stops at the first operator that fails and returns its error. */
TVM_DLL int TVMGraphExecutor_Run(TVMGraphExecutor* executor);

/*! \brief Frees the executor and sets the pointer to NULL. */
TVM_DLL int TVMGraphExecutor_Release(TVMGraphExecutor** executor);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_GRAPH_EXECUTOR_H_ */
