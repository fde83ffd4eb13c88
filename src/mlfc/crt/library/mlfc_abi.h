/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief What libraries and the code that they carry agree on */
#ifndef MLFC_ABI_H_
#define MLFC_ABI_H_

#include <tvm/runtime/c_runtime_api.h>

/*! \brief Changes with anything that loaders rely on; the exported variable mlfc_abi_version has it. */
#define MLFC_ABI_VERSION 1

/*! \brief How mlfc_digest starts. */
#define MLFC_DIGEST_MARK "mlfc digest"

/*!
 * \brief Room for the digest of the library's own file, which is written into the file once it is linked.
 *
 * Little-endian: 4 bytes for the kind, 0 for none and 1 for SHA-256; 4 for a number of ranges; 32 for the digest; for
 * each range of the file with constants that the digest leaves out, 8 for its offset and 8 for its size.
 */
struct mlfc_digest {
  char mark[16];
  uint8_t content[4 + 4 + 32 + 64 * (8 + 8)];
};

/*! \brief The loader's handle of the library; generated code gives it to TVMBackendGetFuncFromEnv. */
extern TVM_DLL void* __tvm_module_ctx;

#endif /* MLFC_ABI_H_ */
