/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Limits of the C runtime in a shared library: those of the host, and two settings */
#ifndef MLFC_LIBRARY_CRT_CONFIG_H_
#define MLFC_LIBRARY_CRT_CONFIG_H_

/* Functions are looked up in the library itself, regardless of a system library. */
#define TVM_CRT_SYSTEM_LIB 0
#define TVM_CRT_CONTEXT_POINTERS 1

#include "../host/crt_config.h"

#endif /* MLFC_LIBRARY_CRT_CONFIG_H_ */
