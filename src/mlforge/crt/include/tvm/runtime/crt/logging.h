/* Part of mlforge's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Where log lines go */
#ifndef TVM_RUNTIME_CRT_LOGGING_H_
#define TVM_RUNTIME_CRT_LOGGING_H_

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Writes a formatted line to the log; the platform implements it, or the RPC server, which sends it on. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void TVMLogf(const char* fmt, ...);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TVM_RUNTIME_CRT_LOGGING_H_ */
