/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Functions of tvm-ffi's calling convention, which can be loaded without tvm-ffi's library */
#ifndef MLFC_FFI_H_
#define MLFC_FFI_H_

#include "mlfc_entry.h"

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief A value of tvm-ffi: TVMFFIAny. */
struct mlfc_any {
  int32_t type_index;
  /*! \brief Length of a short string stored in the value; else 0. */
  uint32_t small_length;
  union {
    int64_t v_int64;
    double v_float64;
    void* v_ptr;
    const char* v_str;
  } value;
};

/*!
 * \brief Implements a function of tvm-ffi.
 *
 * Its arguments are all tensors of the function, or only the inputs: then it returns new outputs, one as a tensor,
 * several as an array.
 *
 * \param function The function to run.
 * \param args, num_args, result Its arguments and result.
 * \param tensors, data Memory for as many pointers as the function has parameters.
 */
int mlfc_ffi_entry(const struct mlfc_function* function, const struct mlfc_any* args, int32_t num_args,
                      struct mlfc_any* result, const DLTensor** tensors, void** data);

/*!
 * \brief Implements a function of tvm-ffi that calls one of the classic convention on tensors.
 * \param name For messages.
 * \param packed The function to call.
 * \param count Number of its tensors.
 * \param args, num_args Its arguments.
 * \param values, type_codes Memory for as many arguments.
 */
int mlfc_ffi_packed(const char* name, TVMBackendPackedCFunc packed, int32_t count, const struct mlfc_any* args,
                       int32_t num_args, TVMValue* values, int* type_codes);

/*! \brief Implements a function of tvm-ffi that returns a text. */
int mlfc_ffi_text(const char* text, struct mlfc_any* result);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_FFI_H_ */
