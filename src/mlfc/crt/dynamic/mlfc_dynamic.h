/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Dynamic models as functions of tvm-ffi */
#ifndef MLFC_DYNAMIC_H_
#define MLFC_DYNAMIC_H_

#include <mlfc_vm.h>

#include "mlfc_ffi.h"

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief The functions and memory of a dynamic model. */
struct mlfc_dynamic {
  /*! \brief Its name, parameters and gate. Dynamic dimensions of parameters are -1; `run` is not called. */
  const struct mlfc_function* function;
  /*! \brief Of each parameter, the number that mlfc_vm_tensor has. */
  const uint8_t* dtypes;
  int32_t (*run)(const mlfc_vm_host* host, const mlfc_vm_tensor* inputs, mlfc_vm_tensor* outputs, void* work,
                 int64_t work_bytes, mlfc_vm_error* error);
  /*! \brief Frees outputs; NULL where these are in the work area. */
  int32_t (*release)(const mlfc_vm_host* host, mlfc_vm_tensor* outputs, int32_t count);
  /*! \brief Of the work area; 0 for models without a bound. */
  int64_t work_bytes;
  /*! \brief Sets the states to what they begin with, and is_set; NULL without states. */
  int32_t (*reset)(void* const* data);
  void* state;
  /*! \brief Whether the states have been set. */
  const int32_t* is_set;
};

/*!
 * \brief The whole of a function of tvm-ffi that runs a dynamic model; as mlfc_ffi_entry.
 * \param tensors, data, values Memory for as many elements as the model has parameters.
 */
int mlfc_ffi_dynamic(const struct mlfc_dynamic* model, const struct mlfc_any* args, int32_t num_args,
                     struct mlfc_any* result, const DLTensor** tensors, void** data, mlfc_vm_tensor* values);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_DYNAMIC_H_ */
