/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief How kernels share their work among threads or cores: by a function that an application may hand in */
#ifndef MLFC_PARALLEL_H_
#define MLFC_PARALLEL_H_

#include <stdint.h>

#if defined(_WIN32)
#define MLFC_POOL_API __declspec(dllexport)
#elif defined(__GNUC__)
#define MLFC_POOL_API __attribute__((visibility("default")))
#else
#define MLFC_POOL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*!
 * \brief Computes the pieces from first on, before last; pieces may be computed in any order, and at the same time.
 * \param scratch The thread's own memory, aligned to 64 bytes; NULL where the arguments have the memory to use.
 */
typedef int32_t mlfc_task(const void* arguments, int32_t first, int32_t last, void* scratch);

/*!
 * \brief Computes the pieces from 0 to count by calls of a task, each piece once; returns when all are done.
 *
 * At any time one call at most may have NULL as its scratch, that of the caller's thread; others have memory of their
 * own. No task shares out pieces itself.
 * \param most Threads that the work is worth: about as many times ten microseconds of a host's core.
 * \param scratch_bytes The size of the memory of its own that each thread but the caller's gets.
 * \return 0, or what a task that failed returned.
 */
typedef int32_t mlfc_parallel_for_function(mlfc_task* task, const void* arguments, int32_t count, int32_t most,
                                           uint64_t scratch_bytes);

/*! \brief Chooses who shares out the pieces of kernels, while none runs; NULL, as at first: whoever does by itself. */
MLFC_POOL_API void mlfc_set_parallel_for(mlfc_parallel_for_function* function);

/*! \brief What kernels call. */
MLFC_POOL_API int32_t mlfc_parallel_for(mlfc_task* task, const void* arguments, int32_t count, int32_t most,
                                        uint64_t scratch_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_PARALLEL_H_ */
