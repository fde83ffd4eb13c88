/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Libraries as executables of TVM's Relax virtual machine */
#ifndef MLFC_RELAX_H_
#define MLFC_RELAX_H_

#include "mlfc_ffi.h"

#ifdef __cplusplus
extern "C" {
#endif

/*!
 * \brief Implements vm_load_executable, a function of tvm-ffi that returns a virtual machine of TVM's runtime.
 * \param code, nbytes A stored executable, whose functions call those of this library.
 * \param result The virtual machine, a module.
 */
int mlfc_relax_load(const unsigned char* code, size_t nbytes, struct mlfc_any* result);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_RELAX_H_ */
