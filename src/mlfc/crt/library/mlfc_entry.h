/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Functions on tensors for both calling conventions, with a table of their parameters */
#ifndef MLFC_ENTRY_H_
#define MLFC_ENTRY_H_

#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/c_backend_api.h>

#include "mlfc_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Type code of bool in newer DLPack, which older headers do not name. */
enum { MLFC_DLPACK_BOOL = 6 };

/*! \brief An argument: a compact tensor on the CPU. */
struct mlfc_parameter {
  /*! \brief The name in the model, for messages. */
  const char* name;
  const int64_t* shape;
  int32_t ndim;
  DLDataType dtype;
  uint64_t num_bytes;
};

/*! \brief Lock for one call at a time; initially zero. */
struct mlfc_gate {
  /*! \brief Id of the process whose thread is inside; 0 if none. */
  long process;
};

/*! \brief Waits until no other thread is inside, and enters. */
void mlfc_gate_enter(struct mlfc_gate* gate);

/*! \brief Leaves, so that the next thread can enter. */
void mlfc_gate_leave(struct mlfc_gate* gate);

/*! \brief A function that reads some tensors and writes others. */
struct mlfc_function {
  const char* name;
  /*! \brief The tensors that it reads, then those that it writes. */
  const struct mlfc_parameter* parameters;
  int32_t num_inputs;
  int32_t num_outputs;
  /*! \brief Runs it on the addresses of the tensors' elements; 0 on success. */
  int32_t (*run)(void* const* data);
  /*! \brief Lock held during a run; NULL for reentrant functions. */
  struct mlfc_gate* gate;
};

/*! \brief The error of a failed call. */
struct mlfc_failure {
  /*! \brief The name of a Python exception: TypeError, ValueError, RuntimeError. */
  const char* kind;
  char text[512];
};

/*! \brief Sets the failure; the text is a printf format. Returns -1. */
int mlfc_fail(struct mlfc_failure* failure, const char* kind, const char* format, ...);

/*!
 * \brief Checks a tensor of a function.
 * \param expected What it must be.
 * \param data Set to the address of its elements.
 * \return 0 on success.
 */
int mlfc_check(const struct mlfc_function* function, const struct mlfc_parameter* expected, const DLTensor* tensor,
               void** data, struct mlfc_failure* failure);

/*!
 * \brief Checks the tensors, and runs the function on them.
 * \param function The function to run.
 * \param tensors One for each parameter, none NULL.
 * \param data Memory for as many addresses.
 * \param failure Set if the call fails.
 * \return 0 on success.
 */
int mlfc_run(const struct mlfc_function* function, const DLTensor* const* tensors, void** data,
                struct mlfc_failure* failure);

/*! \brief An argument of an operator: the number of its storage, its dtype and elements. */
struct mlfc_operand {
  int32_t storage;
  DLDataType dtype;
  int64_t elements;
};

/*! \brief A call of an operator. */
struct mlfc_call {
  TVMBackendPackedCFunc function;
  const struct mlfc_operand* operands;
  int32_t count;
};

/*!
 * \brief Calls operators in order.
 * \param storages Addresses by number.
 * \param tensors, values, type_codes Memory for the operands of one call.
 * \return 0 on success.
 */
int32_t mlfc_call_operators(const struct mlfc_call* calls, int32_t count, void* const* storages, DLTensor* tensors,
                            TVMValue* values, int* type_codes);

/*!
 * \brief Implements a function of the classic convention.
 * \param function The function to run.
 * \param args, type_codes, num_args Its arguments.
 * \param tensors, data Memory for as many pointers as the function has parameters.
 */
int mlfc_classic_entry(const struct mlfc_function* function, const TVMValue* args, const int* type_codes,
                          int num_args, const DLTensor** tensors, void** data);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_ENTRY_H_ */
