/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Runs a model with the packed AOT interface by its metadata tables */
#ifndef TVM_RUNTIME_CRT_AOT_EXECUTOR_H_
#define TVM_RUNTIME_CRT_AOT_EXECUTOR_H_

#include <dlpack/dlpack.h>
#include <tvm/runtime/c_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TVMAotExecutor TVMAotExecutor;

/*!
 * \brief Finds a model's functions and allocates its inputs and outputs.
 * \param module_handle The module with tvmgen_<module_name>_get_c_metadata and tvmgen_<module_name>_run.
 * \param device kDLCPU, 0.
 * \param executor The executor; NULL on failure.
 * \param module_name Name that the model was compiled with.
 */
TVM_DLL int TVMAotExecutor_Create(TVMModuleHandle module_handle, const DLDevice device, TVMAotExecutor** executor,
                                  const char* module_name);

/*! \brief Returns the number of inputs. */
TVM_DLL int TVMAotExecutor_GetNumInputs(TVMAotExecutor* executor);

/*! \brief Returns the number of outputs. */
TVM_DLL int TVMAotExecutor_GetNumOutputs(TVMAotExecutor* executor);

/*! \brief Returns the position of an input by its name in the tables or in the model; -1 if not found. */
TVM_DLL int TVMAotExecutor_GetInputIndex(TVMAotExecutor* executor, const char* name);

/*! \brief Returns the name of an input; it is part of the model's tables and must not be modified. */
TVM_DLL int TVMAotExecutor_GetInputName(TVMAotExecutor* executor, int index, char** name);

/*! \brief Returns the executor's own tensor of an input, to be filled. */
TVM_DLL int TVMAotExecutor_GetInput(TVMAotExecutor* executor, int index, DLTensor** tensor);

/*! \brief Returns the executor's own tensor of an output, to be read. */
TVM_DLL int TVMAotExecutor_GetOutput(TVMAotExecutor* executor, int index, DLTensor** tensor);

/*! \brief Runs the model. */
TVM_DLL int TVMAotExecutor_Run(TVMAotExecutor* executor);

/*! \brief Frees the executor. */
TVM_DLL int TVMAotExecutor_Release(TVMAotExecutor* executor, const DLDevice device);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_AOT_EXECUTOR_H_ */
