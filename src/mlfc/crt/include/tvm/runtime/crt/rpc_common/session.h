/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The device's side of a session: receives the packets of the current host and answers them */
#ifndef TVM_RUNTIME_CRT_RPC_COMMON_SESSION_H_
#define TVM_RUNTIME_CRT_RPC_COMMON_SESSION_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tvm/runtime/crt/error_codes.h>
#include <tvm/runtime/crt/rpc_common/framing.h>

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Bytes of a packet's payload before the message: the session's id and the message's type. */
#define TVM_SESSION_HEADER_BYTES 3

/*! \brief Version of the protocol that both sides must speak. */
#define TVM_SESSION_VERSION 1

typedef enum {
  kTvmMessageStartSessionInit = 0x00,
  kTvmMessageStartSessionReply = 0x01,
  kTvmMessageTerminateSession = 0x02,
  kTvmMessageLog = 0x03,
  kTvmMessageNormal = 0x10
} TVMMessageType;

/*! \brief Event that a packet causes. */
typedef enum { kTvmSessionNothing, kTvmSessionStarted, kTvmSessionEnded, kTvmSessionMessage } TVMSessionEvent;

typedef struct TVMSession {
  TVMFramer framer;
  /*! \brief The host's nonce in the low byte, the device's in the high one. */
  uint16_t id;
  uint8_t nonce;
  bool established;
  bool sending;
} TVMSession;

/*! \brief Starts without a session, and notifies a host that has one of its end. */
tvm_crt_error_t TVMSession_Init(TVMSession* session, const TVMWriteStream* stream);

/*!
 * \brief Handles a packet: answers a host that starts a session, and rejects packets of other sessions.
 * \param payload Its payload, in which a message starts at TVM_SESSION_HEADER_BYTES.
 * \param event The event that it causes.
 */
tvm_crt_error_t TVMSession_Handle(TVMSession* session, const uint8_t* payload, size_t length, TVMSessionEvent* event);

/*! \brief Starts a message of exactly the given number of bytes. Fails while another message is being sent. */
tvm_crt_error_t TVMSession_StartMessage(TVMSession* session, TVMMessageType type, size_t body_bytes);

/*! \brief Sends a part of the message. */
tvm_crt_error_t TVMSession_WriteBody(TVMSession* session, const uint8_t* data, size_t num_bytes);

/*! \brief Ends the message. */
tvm_crt_error_t TVMSession_FinishMessage(TVMSession* session);

/*! \brief Sends a whole message. */
tvm_crt_error_t TVMSession_SendMessage(TVMSession* session, TVMMessageType type, const uint8_t* body,
                                       size_t body_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_RPC_COMMON_SESSION_H_ */
