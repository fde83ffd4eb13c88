/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
#include <tvm/runtime/crt/platform.h>
#include <tvm/runtime/crt/rpc_common/session.h>

/* Without a source of random bytes, counting still distinguishes a session from the previous one. */
static uint8_t next_nonce(uint8_t last) {
  uint8_t nonce = 0;
  if (TVMPlatformGenerateRandom(&nonce, sizeof(nonce)) != kTvmErrorNoError || nonce == 0 || nonce == last) {
    nonce = (uint8_t)(last + 1);
  }
  return nonce == 0 ? 1 : nonce;
}

tvm_crt_error_t TVMSession_Init(TVMSession* session, const TVMWriteStream* stream) {
  TVMFramer_Init(&session->framer, stream);
  session->id = 0;
  session->nonce = 0;
  session->established = false;
  session->sending = false;
  return TVMSession_SendMessage(session, kTvmMessageTerminateSession, NULL, 0);
}

static tvm_crt_error_t start(TVMSession* session, uint8_t host_nonce, TVMSessionEvent* event) {
  static const uint8_t version = TVM_SESSION_VERSION;
  session->nonce = next_nonce(session->nonce);
  session->id = (uint16_t)(host_nonce | session->nonce << 8);
  session->established = true;
  *event = kTvmSessionStarted;
  return TVMSession_SendMessage(session, kTvmMessageStartSessionReply, &version, sizeof(version));
}

tvm_crt_error_t TVMSession_Handle(TVMSession* session, const uint8_t* payload, size_t length, TVMSessionEvent* event) {
  *event = kTvmSessionNothing;
  if (length < TVM_SESSION_HEADER_BYTES) return kTvmErrorNoError;
  const uint16_t id = (uint16_t)(payload[0] | payload[1] << 8);
  switch (payload[2]) {
    case kTvmMessageStartSessionInit:
      if (payload[0] == 0 || payload[1] != 0 || length != TVM_SESSION_HEADER_BYTES + 1 ||
          payload[TVM_SESSION_HEADER_BYTES] != TVM_SESSION_VERSION) {
        return kTvmErrorNoError;
      }
      return start(session, payload[0], event);
    case kTvmMessageTerminateSession:
      if (session->established) *event = kTvmSessionEnded;
      session->established = false;
      session->id = 0;
      return kTvmErrorNoError;
    case kTvmMessageNormal:
      if (session->established && id == session->id) *event = kTvmSessionMessage;
      return kTvmErrorNoError;
    default: return kTvmErrorNoError;
  }
}

tvm_crt_error_t TVMSession_StartMessage(TVMSession* session, TVMMessageType type, size_t body_bytes) {
  const uint8_t header[TVM_SESSION_HEADER_BYTES] = {(uint8_t)(session->id & 0xFF), (uint8_t)(session->id >> 8),
                                                    (uint8_t)type};
  if (session->sending || body_bytes > SIZE_MAX - sizeof(header)) return kTvmErrorSessionInvalidState;
  session->sending = true;
  const tvm_crt_error_t error = TVMFramer_StartPacket(&session->framer, sizeof(header) + body_bytes);
  return error != kTvmErrorNoError ? error : TVMFramer_WritePayload(&session->framer, header, sizeof(header));
}

tvm_crt_error_t TVMSession_WriteBody(TVMSession* session, const uint8_t* data, size_t num_bytes) {
  return TVMFramer_WritePayload(&session->framer, data, num_bytes);
}

tvm_crt_error_t TVMSession_FinishMessage(TVMSession* session) {
  session->sending = false;
  return TVMFramer_FinishPacket(&session->framer);
}

tvm_crt_error_t TVMSession_SendMessage(TVMSession* session, TVMMessageType type, const uint8_t* body,
                                       size_t body_bytes) {
  tvm_crt_error_t error = TVMSession_StartMessage(session, type, body_bytes);
  if (error == kTvmErrorSessionInvalidState) return error;
  if (error == kTvmErrorNoError && body_bytes > 0) error = TVMSession_WriteBody(session, body, body_bytes);
  const tvm_crt_error_t last = TVMSession_FinishMessage(session);
  return error != kTvmErrorNoError ? error : last;
}
