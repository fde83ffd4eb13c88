/* Part of mlforge's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief What libraries and the code that they carry agree on */
#ifndef MLFORGE_ABI_H_
#define MLFORGE_ABI_H_

#include <tvm/runtime/c_runtime_api.h>

/*! \brief Changes with anything that loaders rely on; the exported variable mlforge_abi_version has it. */
#define MLFORGE_ABI_VERSION 1

/*! \brief The loader's handle of the library; generated code gives it to TVMBackendGetFuncFromEnv. */
extern TVM_DLL void* __tvm_module_ctx;

#endif /* MLFORGE_ABI_H_ */
