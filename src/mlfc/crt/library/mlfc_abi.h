/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Definitions shared by libraries and their loaders */
#ifndef MLFC_ABI_H_
#define MLFC_ABI_H_

#include <tvm/runtime/c_runtime_api.h>

/*! \brief Changes with anything that loaders rely on; exported as the variable mlfc_abi_version. */
#define MLFC_ABI_VERSION 1

/*! \brief Start of mlfc_digest. */
#define MLFC_DIGEST_MARK "mlfc digest"

/*!
 * \brief Space for the digest of the library's own file, which is written into the file after linking.
 *
 * Little-endian: 4 bytes for the kind, 0 for none and 1 for SHA-256; 4 for a number of ranges; 32 for the digest; for
 * each range of constants that the digest excludes, 8 for its file offset and 8 for its size.
 */
struct mlfc_digest {
  char mark[16];
  uint8_t content[4 + 4 + 32 + 64 * (8 + 8)];
};

/*! \brief The loader's handle of the library; generated code passes it to TVMBackendGetFuncFromEnv. */
extern TVM_DLL void* __tvm_module_ctx;

#endif /* MLFC_ABI_H_ */
