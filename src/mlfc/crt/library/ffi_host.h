/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Functions of tvm-ffi's library, looked up on first use: other callers do not need it */
#ifndef MLFC_FFI_HOST_H_
#define MLFC_FFI_HOST_H_

#include "mlfc_ffi.h"

/* Type indices of tvm-ffi. */
enum {
  kFfiNone = 0,
  kFfiInt = 1,
  kFfiBool = 2,
  kFfiFloat = 3,
  kFfiTensorPointer = 7,
  kFfiRawString = 8,
  kFfiBytesPointer = 9,
  kFfiSmallString = 11,
  kFfiSmallBytes = 12,
  kFfiString = 65,
  kFfiBytes = 66,
  kFfiTensor = 70,
  kFfiArray = 71,
  kFfiModule = 73
};

/* Bytes of tvm-ffi, with their length: TVMFFIByteArray. */
struct mlfc_bytes {
  const char* data;
  size_t size;
};

/* Header of every object: counts, type index, deleter. */
enum { kFfiHeaderBytes = 24 };

/* More outputs than this are passed in, not returned. */
enum { MLFC_MAX_RESULTS = 64 };

/*!
 * \brief Takes the arguments of a call: all tensors of the function, or its inputs alone.
 * \return 1 where the call returns the outputs, 0 where it has them, -1 on failure.
 */
int mlfc_ffi_take(const struct mlfc_function* function, const struct mlfc_any* args, int32_t num_args,
                  const struct mlfc_any* result, const DLTensor** tensors, struct mlfc_failure* failure);

/*! \brief Returns fresh outputs if the status is 0, and gives them up otherwise; returns the status. */
int mlfc_ffi_return(struct mlfc_any* made, int32_t count, int status, struct mlfc_any* result,
                    struct mlfc_failure* failure);

/*! \brief Raises the failure in the caller's language; always -1. */
int mlfc_ffi_raise(const struct mlfc_failure* failure);

/*! \brief Creates a tensor that matches a parameter, owned by the caller. */
int mlfc_ffi_tensor(const struct mlfc_parameter* parameter, struct mlfc_any* out,
                       struct mlfc_failure* failure);

/*!
 * \brief Calls a global function; where that raises an error, the failure has no kind.
 * \param known Set to the function, which is looked up by name where this is NULL.
 */
int mlfc_ffi_call(const char* name, void** known, struct mlfc_any* args, int32_t count, struct mlfc_any* out,
                  struct mlfc_failure* failure);

/*! \brief Creates an array of values. */
int mlfc_ffi_array(struct mlfc_any* values, int32_t count, struct mlfc_any* out,
                      struct mlfc_failure* failure);

/*! \brief Creates a string. */
int mlfc_ffi_string(const char* text, struct mlfc_any* out, struct mlfc_failure* failure);

/*! \brief Releases a reference to an object. */
void mlfc_ffi_release(struct mlfc_any* value);

#endif /* MLFC_FFI_HOST_H_ */
