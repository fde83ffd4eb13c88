/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The limits of crt_config.h, with defaults for those missing in a configuration for microTVM */
#ifndef TVM_RUNTIME_CRT_COMMON_CONFIG_H_
#define TVM_RUNTIME_CRT_COMMON_CONFIG_H_

#include <crt_config.h>

#ifndef TVM_CRT_MAX_NDIM
#define TVM_CRT_MAX_NDIM 6
#endif

#ifndef TVM_CRT_MAX_ARGS
#define TVM_CRT_MAX_ARGS 10
#endif

#ifndef TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES
#define TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES 512
#endif

#ifndef TVM_CRT_MAX_REGISTERED_MODULES
#define TVM_CRT_MAX_REGISTERED_MODULES 2
#endif

#ifndef TVM_CRT_MAX_STRLEN_DLTYPE
#define TVM_CRT_MAX_STRLEN_DLTYPE 16
#endif

#ifndef TVM_CRT_MAX_STRLEN_FUNCTION_NAME
#define TVM_CRT_MAX_STRLEN_FUNCTION_NAME 120
#endif

#ifndef TVM_CRT_MAX_STRLEN_PARAM_NAME
#define TVM_CRT_MAX_STRLEN_PARAM_NAME 80
#endif

#ifndef TVM_CRT_MAX_STRLEN_ERROR_TEXT
#define TVM_CRT_MAX_STRLEN_ERROR_TEXT 160
#endif

/* Longest packet that the RPC server accepts. */
#ifndef TVM_CRT_MAX_PACKET_SIZE_BYTES
#define TVM_CRT_MAX_PACKET_SIZE_BYTES 2048
#endif

/* Whether the RPC server registers the AOT executor's module, as microTVM's does: its files must then be linked. */
#ifndef TVM_CRT_RPC_AOT_EXECUTOR
#define TVM_CRT_RPC_AOT_EXECUTOR 1
#endif

/* Whether hosts may access only memory that they allocated by the RPC server, and tensors of executor modules. */
#ifndef TVM_CRT_RPC_OWN_MEMORY_ONLY
#define TVM_CRT_RPC_OWN_MEMORY_ONLY 0
#endif

/* Constant memory: parameters that are part of the program. Hosts may read it, and set it to its present content. */
#ifndef TVM_CRT_RPC_IS_CONSTANT
#define TVM_CRT_RPC_IS_CONSTANT(address, num_bytes) false
#endif

/* Storage class of the error text: empty if only one thread calls the runtime. */
#ifndef TVM_CRT_THREAD_LOCAL
#define TVM_CRT_THREAD_LOCAL
#endif

/* Whether generated code defines TVMSystemLibEntryPoint. */
#ifndef TVM_CRT_SYSTEM_LIB
#define TVM_CRT_SYSTEM_LIB 1
#endif

/* Whether a process that loads the runtime as part of a library may replace its functions. */
#ifndef TVM_CRT_CONTEXT_POINTERS
#define TVM_CRT_CONTEXT_POINTERS 0
#endif

/* Alignment of each storage block of executors: a power of two. */
#ifndef TVM_CRT_STORAGE_ALIGNMENT_BYTES
#define TVM_CRT_STORAGE_ALIGNMENT_BYTES 16
#endif

#endif /* TVM_RUNTIME_CRT_COMMON_CONFIG_H_ */
