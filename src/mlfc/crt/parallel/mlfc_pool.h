/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*! \brief The threads that share the work of kernels: one pool for a process, whatever models it runs */
#ifndef MLFC_POOL_H_
#define MLFC_POOL_H_

#include "mlfc_parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/*!
 * \brief As `mlfc_parallel_for`, where threads were asked for: mlfc or TVM loaded the library, the program called
 *        `mlfc_set_num_threads` or `mlfc_set_parallel_for`, or its environment has TVM_NUM_THREADS or OMP_NUM_THREADS.
 *        Else the caller computes all.
 */
MLFC_POOL_API int32_t mlfc_parallel_for_if_asked(mlfc_task* task, const void* arguments, int32_t count, int32_t most,
                                                 uint64_t scratch_bytes);

/*! \brief Chooses how many threads run a kernel at most, 1 to 1024; 0 for as many as there are cores. */
MLFC_POOL_API void mlfc_set_num_threads(int32_t count);

/*! \brief What a pool does for the libraries of a process. */
typedef struct {
  int32_t version;
  int32_t (*run)(mlfc_task*, const void*, int32_t, int32_t, uint64_t);
  /*! \brief Chooses how many threads run a kernel at most, 1 to 1024; 0 for as many as there are cores. */
  void (*set_threads)(int32_t);
  int32_t (*threads)(void);
  /*! \brief How many times work was shared so far. */
  uint64_t (*launches)(void);
  /*! \brief Whether the time that each thread spends in tasks is taken; it counts from 0 each time that this begins. */
  void (*set_timed)(int32_t);
  /*! \brief Nanoseconds that a thread spent in tasks while that was taken; 0 is the caller's, whoever that was. */
  uint64_t (*time_of)(int32_t);
} mlfc_pool;

/*! \brief The pool that a library brings. */
extern MLFC_POOL_API const mlfc_pool mlfc_own_pool;

/*! \brief The pool that a loader of several libraries sets, that of the first; NULL, for its own, without one. */
extern MLFC_POOL_API const mlfc_pool* mlfc_used_pool;

/*! \brief The cores that this process may use, each once however many threads it runs, and not more than its quota. */
int32_t mlfc_cores(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MLFC_POOL_H_ */
