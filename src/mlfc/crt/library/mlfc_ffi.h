/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Functions of the convention of tvm-ffi, whose library need not be there when these are loaded */
#ifndef MLFC_FFI_H_
#define MLFC_FFI_H_

#include "mlfc_entry.h"

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief A value of tvm-ffi: TVMFFIAny. */
struct mlfc_any {
  int32_t type_index;
  /*! \brief Of a short string that lies in the value; else 0. */
  uint32_t small_length;
  union {
    int64_t v_int64;
    double v_float64;
    void* v_ptr;
    const char* v_str;
  } value;
};

/*!
 * \brief The whole of a function of tvm-ffi.
 *
 * Its arguments are all tensors of the function, or the inputs alone: then it returns fresh outputs, one as a tensor,
 * several as an array.
 *
 * \param function What it runs.
 * \param args, num_args, result As it got them.
 * \param tensors, data Memory for as many pointers as the function has parameters.
 */
int mlfc_ffi_entry(const struct mlfc_function* function, const struct mlfc_any* args, int32_t num_args,
                      struct mlfc_any* result, const DLTensor** tensors, void** data);

/*!
 * \brief The whole of a function of tvm-ffi that calls one of the classic convention on tensors.
 * \param name For messages.
 * \param packed What to call.
 * \param count How many tensors it takes.
 * \param args, num_args As it got them.
 * \param values, type_codes Memory for as many arguments.
 */
int mlfc_ffi_packed(const char* name, TVMBackendPackedCFunc packed, int32_t count, const struct mlfc_any* args,
                       int32_t num_args, TVMValue* values, int* type_codes);

/*! \brief The whole of a function of tvm-ffi that returns a text. */
int mlfc_ffi_text(const char* text, struct mlfc_any* result);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_FFI_H_ */
