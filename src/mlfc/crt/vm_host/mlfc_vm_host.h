/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The virtual machine for hosts: what a library exports so that a whole run is one call. */
#ifndef MLFC_VM_HOST_H_
#define MLFC_VM_HOST_H_

#include <mlfc_vm.h>

#ifdef __cplusplus
extern "C" {
#endif

/*!
 * \brief Checks bytecode and makes it ready to run.
 * \param file, bytes The bytecode, which stays where it is until `mlfc_vm_host_close`.
 * \param code The native code of the same model.
 * \param depth The limit of calls within calls; 0 is none for code that does not recurse.
 * \param opened Set to what the other functions take.
 * \return MLFC_VM_OK or the error's code.
 */
int32_t mlfc_vm_host_open(const uint8_t* file, uint64_t bytes, const mlfc_vm_code* code, uint32_t depth, void** opened,
                          mlfc_vm_error* error);

/*! \brief Frees it, once every output is released; no run may be going on or come. */
void mlfc_vm_host_close(void* opened);

/*! \brief A run: what is called, on what, and under which limits. A caller in another language prepares it once. */
typedef struct mlfc_vm_host_call {
  /*! \brief What `mlfc_vm_host_open` set. */
  void* opened;
  const mlfc_vm_tensor* inputs;
  /*! \brief Set, one for each result, each in memory of its own, until `mlfc_vm_host_release`. */
  mlfc_vm_tensor* outputs;
  /*!
   * \brief NULL, or where the results are copied to instead, one for each: tensors of the caller whose dtype, rank and
   *   extents they must have, at any address. If one has others, MLFC_VM_BAD_OUTPUT without a text is the error,
   *   `values` are [result, 0, 0], `outputs` tells what the results are, and nothing has been written.
   */
  const mlfc_vm_tensor* targets;
  mlfc_vm_error* error;
  int64_t memory_limit;
  uint64_t turn_limit;
  uint32_t function;
  uint32_t input_count;
  uint32_t output_count;
} mlfc_vm_host_call;

/*! \brief Runs a function; any number of threads may run at once, each with a call of its own. */
int32_t mlfc_vm_host_run(const mlfc_vm_host_call* call);

/*! \brief Frees an output by its `block`, once, in any thread, even after the close; NULL is nothing. */
void mlfc_vm_host_release(void* opened, void* block);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_VM_HOST_H_ */
