/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Limits of the C runtime on a host with ample memory */
#ifndef TVM_RUNTIME_CRT_CONFIG_H_
#define TVM_RUNTIME_CRT_CONFIG_H_

#define TVM_CRT_DEBUG 0
#define TVM_CRT_MAX_NDIM 16
#define TVM_CRT_MAX_ARGS 256
#define TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES 65536
#define TVM_CRT_MAX_REGISTERED_MODULES 64
#define TVM_CRT_MAX_PACKET_SIZE_BYTES 65536
#define TVM_CRT_MAX_STRLEN_DLTYPE 32
#define TVM_CRT_MAX_STRLEN_FUNCTION_NAME 1024
#define TVM_CRT_MAX_STRLEN_PARAM_NAME 1024
#define TVM_CRT_MAX_STRLEN_ERROR_TEXT 2048
/* Like the workspace of generated code, which may use the widest vectors. */
#define TVM_CRT_STORAGE_ALIGNMENT_BYTES 64

#if defined(__GNUC__)
#define TVM_CRT_THREAD_LOCAL __thread
#elif defined(_MSC_VER)
#define TVM_CRT_THREAD_LOCAL __declspec(thread)
#endif

/* A program whose generated code defines no TVMSystemLibEntryPoint is compiled with -DTVM_CRT_SYSTEM_LIB=0. */
#ifndef TVM_CRT_SYSTEM_LIB
#define TVM_CRT_SYSTEM_LIB 1
#endif

#endif /* TVM_RUNTIME_CRT_CONFIG_H_ */
