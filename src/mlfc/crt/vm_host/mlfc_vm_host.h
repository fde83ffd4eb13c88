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

/*! \brief Frees it; no run may be going on. */
void mlfc_vm_host_close(void* opened);

/*!
 * \brief Runs a function; any number of threads may run at once.
 * \param work Set to what `mlfc_vm_host_finish` takes, with the outputs, when they have been read. Only on success.
 */
int32_t mlfc_vm_host_run(void* opened, uint32_t function, const mlfc_vm_tensor* inputs, uint32_t input_count,
                         mlfc_vm_tensor* outputs, uint32_t output_count, int64_t memory_limit, uint64_t turn_limit,
                         void** work, mlfc_vm_error* error);

void mlfc_vm_host_finish(void* opened, mlfc_vm_tensor* outputs, uint32_t output_count, void* work);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_VM_HOST_H_ */
