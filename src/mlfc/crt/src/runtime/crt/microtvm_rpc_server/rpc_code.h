/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Codes of requests and replies, which follow the length */
#ifndef TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_RPC_CODE_H_
#define TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_RPC_CODE_H_

typedef enum {
  kRpcShutdown = 1,
  kRpcInitServer = 2,
  kRpcCallFunc = 3,
  kRpcReturn = 4,
  kRpcException = 5,
  kRpcCopyFromRemote = 6,
  kRpcCopyToRemote = 7,
  kRpcCopyAck = 8,
  kRpcGetGlobalFunc = 9,
  kRpcFreeHandle = 10,
  kRpcDevSetDevice = 11,
  kRpcDevGetAttr = 12,
  kRpcDevAllocData = 13,
  kRpcDevFreeData = 14,
  kRpcDevStreamSync = 15,
  kRpcCopyAmongRemote = 16,
  kRpcDevAllocDataWithScope = 17,
  kRpcDevCreateStream = 18,
  kRpcDevFreeStream = 19,
  kRpcDevSetStream = 20
} RpcCode;

#endif /* TVM_RUNTIME_CRT_MICROTVM_RPC_SERVER_RPC_CODE_H_ */
