/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The thread pool of kernels: one per process, shared by all models */
#ifndef MLFC_POOL_H_
#define MLFC_POOL_H_

#include "mlfc_parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/*!
 * \brief Like `mlfc_parallel_for` if threads are enabled: mlfc or TVM loaded the library, the program called
 *        `mlfc_set_num_threads` or `mlfc_set_parallel_for`, or its environment has TVM_NUM_THREADS or OMP_NUM_THREADS.
 *        Otherwise the caller computes all pieces.
 */
MLFC_POOL_API int32_t mlfc_parallel_for_if_asked(mlfc_task* task, const void* arguments, int32_t count, int32_t most,
                                                 uint64_t scratch_bytes);

/*! \brief Chooses how many threads run a kernel at most, 1 to 1024; 0 for as many as there are cores. */
MLFC_POOL_API void mlfc_set_num_threads(int32_t count);

/*! \brief Functions of a pool for the libraries of a process. */
typedef struct {
  int32_t version;
  int32_t (*run)(mlfc_task*, const void*, int32_t, int32_t, uint64_t);
  /*! \brief Chooses how many threads run a kernel at most, 1 to 1024; 0 for as many as there are cores. */
  void (*set_threads)(int32_t);
  int32_t (*threads)(void);
  /*! \brief The number of parallel regions so far. */
  uint64_t (*launches)(void);
  /*! \brief Enables measuring the time that each thread spends in tasks; enabling resets it to 0. */
  void (*set_timed)(int32_t);
  /*! \brief Nanoseconds that a thread spent in tasks while measured; thread 0 stands for all callers. */
  uint64_t (*time_of)(int32_t);
} mlfc_pool;

/*! \brief The built-in pool of a library. */
extern MLFC_POOL_API const mlfc_pool mlfc_own_pool;

/*! \brief The pool that a loader of several libraries sets, the first library's; NULL for the built-in one. */
extern MLFC_POOL_API const mlfc_pool* mlfc_used_pool;

/*! \brief The number of cores that this process may use, not counting hardware threads, limited by its quota. */
int32_t mlfc_cores(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_POOL_H_ */
