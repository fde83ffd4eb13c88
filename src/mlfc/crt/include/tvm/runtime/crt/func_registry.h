/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Tables of functions by name */
#ifndef TVM_RUNTIME_CRT_FUNC_REGISTRY_H_
#define TVM_RUNTIME_CRT_FUNC_REGISTRY_H_

#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/crt/error_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t tvm_function_index_t;
typedef uint16_t tvm_module_index_t;

/*!
 * \brief A table of functions.
 *
 * `names` is the count of functions as two bytes, little-endian, then each name with its terminator.
 */
typedef struct TVMFuncRegistry {
  const char* names;
  const TVMBackendPackedCFunc* funcs;
} TVMFuncRegistry;

/*! \brief A table that can grow within its buffer. */
typedef struct TVMMutableFuncRegistry {
  TVMFuncRegistry registry;
  /*! \brief Capacity of the table, in functions. */
  size_t max_functions;
} TVMMutableFuncRegistry;

/*! \brief Average length of a name, without terminator, that TVMMutableFuncRegistry_Create assumes. */
#define TVM_CRT_AVERAGE_FUNCTION_NAME_STRLEN 10

/*! \brief Bytes of a buffer for `num_funcs` functions with names of the average length. */
#define TVM_CRT_FUNC_REGISTRY_SIZE_BYTES(num_funcs) \
  (2 + (num_funcs) * (TVM_CRT_AVERAGE_FUNCTION_NAME_STRLEN + 1 + sizeof(TVMBackendPackedCFunc)))

/*! \brief Returns the number of functions in a table. */
uint16_t TVMFuncRegistry_GetNumFuncs(const TVMFuncRegistry* reg);

/*! \brief Finds the index of a function. */
tvm_crt_error_t TVMFuncRegistry_Lookup(const TVMFuncRegistry* reg, const char* name,
                                       tvm_function_index_t* function_index);

/*! \brief Returns the function at an index. */
tvm_crt_error_t TVMFuncRegistry_GetByIndex(const TVMFuncRegistry* reg, tvm_function_index_t index,
                                           TVMBackendPackedCFunc* out_func);

/*! \brief Creates an empty table in a buffer, which must outlive the table. */
tvm_crt_error_t TVMMutableFuncRegistry_Create(TVMMutableFuncRegistry* reg, uint8_t* buffer, size_t buffer_size_bytes);

/*!
 * \brief Adds a function.
 * \param override Nonzero: replaces a function of this name. Zero: fails if one exists.
 */
tvm_crt_error_t TVMMutableFuncRegistry_Set(TVMMutableFuncRegistry* reg, const char* name, TVMBackendPackedCFunc func,
                                           int override);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_FUNC_REGISTRY_H_ */
