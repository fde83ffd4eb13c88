/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief Work sharing of kernels among threads or cores, by a function that the application may provide */
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
 * \brief Computes the pieces in [first, last); pieces may be computed in any order, and concurrently.
 * \param scratch The thread's own memory, aligned to 64 bytes; NULL if the arguments contain the memory to use.
 */
typedef int32_t mlfc_task(const void* arguments, int32_t first, int32_t last, void* scratch);

/*!
 * \brief Computes the pieces in [0, count) by calls of a task, each piece once; returns when all are done.
 *
 * At any time at most one call may have NULL as its scratch, that of the caller's thread; others have their own memory.
 * Tasks do not distribute pieces themselves.
 * \param most Most useful threads: the work is about that many times ten microseconds of a host's core.
 * \param scratch_bytes The size of the scratch of each thread except the caller's.
 * \return 0, or the result of a failed task.
 */
typedef int32_t mlfc_parallel_for_function(mlfc_task* task, const void* arguments, int32_t count, int32_t most,
                                           uint64_t scratch_bytes);

/*! \brief Sets the function that distributes pieces, while no kernel runs; NULL for the built-in one, the default. */
MLFC_POOL_API void mlfc_set_parallel_for(mlfc_parallel_for_function* function);

/*! \brief The function that kernels call. */
MLFC_POOL_API int32_t mlfc_parallel_for(mlfc_task* task, const void* arguments, int32_t count, int32_t most,
                                        uint64_t scratch_bytes);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_PARALLEL_H_ */
