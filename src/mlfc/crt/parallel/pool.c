/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*
 * A work-stealing thread pool: each thread has its own pieces, and then takes pieces of others.
 *
 * `door` is open while pieces are left, and counts the workers inside. A worker enters by incrementing the count while
 * it is open; the caller closes it when no pieces are left, and waits for the workers inside. So the caller never waits
 * for a worker that wakes too late, and the description of the work, which the caller changes only while the door is
 * closed and no worker is inside, is never read while it changes.
 *
 * Workers spin on `round` for a while after their last work, then sleep. They are created when first needed, live as
 * long as the process, and do not exist in the child of a fork, which creates its own. It detects the fork by its
 * process id, because statically linked C libraries may lack `pthread_atfork`.
 */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#if !defined(__GNUC__) || defined(__TINYC__)
#error "expected a compiler with GNU C atomics, such as gcc or clang"
#endif

#include "mlfc_pool.h"

#include <stdlib.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#elif defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#endif

#if defined(__has_include)
/* defined by the C runtime of libraries, whose configuration this is, but not by that of dynamic models */
#if __has_include(<tvm/runtime/c_backend_api.h>) && __has_include(<crt_config.h>)
#define HAS_TVM_INTERFACE
#include <tvm/runtime/c_backend_api.h>
/* Set by TVM if it loaded the library; mlfc's loader does not set it. */
extern TVM_DLL int (*__TVMBackendParallelLaunch)(FTVMParallelLambda, void*, int);
#endif
#endif

#define MOST_THREADS 1024
#define OPEN 0x40000000
#define ALIGNMENT 64
#define SHARE 2         /* the fraction of a thread's remaining pieces that a thread takes: 1 / 2 */
#define CHUNKS 16       /* at least this fraction of a thread's share, because each range has a start-up cost */
#define WATCH_NS 100000 /* how long a worker spins before it sleeps: about as long as the gaps between kernels */
#define LOOKS 64        /* spins between two reads of the clock */

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)
#define ADD(place, value) __atomic_fetch_add(&(place), value, __ATOMIC_SEQ_CST)

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__) || defined(__arm__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() __asm__ volatile("" ::: "memory")
#endif

typedef struct {
  void* memory; /* aligned, and the start of the allocation */
  void* start;
  uint64_t bytes;
} scratch_space;

static struct {
  /* the work; changed by the caller only while no worker is inside */
  mlfc_task* task;
  const void* arguments;
  int32_t least, workers;
  uint64_t scratch_bytes;
  char gap[64];
  int32_t status; /* result of the first failed task */
  char other_gap[64];
  int32_t door;
  uint32_t round;
  char last_gap[64];
  int32_t busy;    /* a caller is using the pool */
  int32_t started; /* number of existing workers */
  int32_t sleeping;
  int32_t threads; /* chosen number; 0 until first used */
  int32_t asked;   /* whether the program or its environment chose: 1 or -1; 0 if not yet determined */
  int32_t is_over;
  int32_t is_timed;
  int32_t process; /* process of the workers */
  int32_t claimed; /* the process in which a thread resets the pool */
  uint64_t launches;
} pool;

/* The pieces of each thread, the caller's first. Kernels that split the same rows find their data in its cache. */
static struct {
  int64_t next, end; /* the first piece not taken */
  char gap[48];
} own_pieces[MOST_THREADS];

/* Nanoseconds that each thread spent in tasks while measured, the caller's first. */
static uint64_t spent[MOST_THREADS];

static __thread int is_inside; /* this thread computes a piece, so nested calls run sequentially */

/* system ---------------------------------------------------------------------------------------------------- */

#if defined(_WIN32)

static SRWLOCK lock = SRWLOCK_INIT;
static CONDITION_VARIABLE changed = CONDITION_VARIABLE_INIT;

#define LOCK() AcquireSRWLockExclusive(&lock)
#define UNLOCK() ReleaseSRWLockExclusive(&lock)
#define WAIT() ((void)SleepConditionVariableSRW(&changed, &lock, INFINITE, 0))
#define WAKE() WakeAllConditionVariable(&changed)
#define GIVE_WAY() ((void)SwitchToThread())

static int64_t nanoseconds(void) {
  LARGE_INTEGER ticks, rate;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&rate);
  return (int64_t)((double)ticks.QuadPart * 1e9 / (double)rate.QuadPart);
}

static void work(intptr_t index);

static DWORD WINAPI run_worker(LPVOID index) {
  work((intptr_t)index);
  return 0;
}

static int32_t this_process(void) { return 1; }

static void renew_lock(void) {}

static int start_worker(intptr_t index) {
  HMODULE self;
  HANDLE thread;
  /* a thread's code must not be unloaded */
  GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, (LPCSTR)&run_worker, &self);
  thread = CreateThread(NULL, 0, run_worker, (LPVOID)index, 0, NULL);
  if (thread == NULL) return 0;
  CloseHandle(thread);
  return 1;
}

#elif defined(__unix__) || defined(__APPLE__)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_t workers[MOST_THREADS];

#define LOCK() ((void)pthread_mutex_lock(&lock))
#define UNLOCK() ((void)pthread_mutex_unlock(&lock))
#define WAIT() ((void)pthread_cond_wait(&changed, &lock))
#define WAKE() ((void)pthread_cond_broadcast(&changed))
#define GIVE_WAY() ((void)sched_yield())

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void work(intptr_t index);

static void* run_worker(void* index) {
  work((intptr_t)index);
  return NULL;
}

static int32_t this_process(void) { return (int32_t)getpid(); }

/* Operations of the parent's threads on it, from before a fork, never complete here. */
static void renew_lock(void) {
  pthread_mutex_init(&lock, NULL);
  pthread_cond_init(&changed, NULL);
}

static int start_worker(intptr_t index) {
  sigset_t all, before;
  int is_made;
  /* signals are handled by the program's own threads */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  is_made = pthread_create(&workers[index], NULL, run_worker, (void*)index) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return is_made;
}

/* At the end of the process, or before the library is unloaded, all workers must leave this code. */
__attribute__((destructor)) static void end_workers(void) {
  int32_t expected = 0;
  if (LOAD(pool.process) != this_process()) return;
  while (!__atomic_compare_exchange_n(&pool.busy, &expected, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    expected = 0;
    if (is_inside) return;
    GIVE_WAY();
  }
  STORE(pool.is_over, 1);
  LOCK();
  ADD(pool.round, 1);
  WAKE();
  UNLOCK();
  for (int32_t index = 0; index < pool.started; ++index) pthread_join(workers[index], NULL);
  pool.started = 0;
}

#else /* no threads, or no known thread API */

#define LOCK() ((void)0)
#define UNLOCK() ((void)0)
#define WAIT() ((void)0)
#define WAKE() ((void)0)
#define GIVE_WAY() ((void)0)

static int64_t nanoseconds(void) { return 0; }
static int32_t this_process(void) { return 1; }
static void renew_lock(void) {}
static int start_worker(intptr_t index) {
  (void)index;
  return 0;
}

#endif

/* work -------------------------------------------------------------------------------------------------------- */

/* Takes the next pieces of a thread, or of another if it has none left; returns whether any were left. */
static int32_t take_range(intptr_t thread, int32_t* first, int32_t* last) {
  const intptr_t threads = pool.workers + 1;
  for (intptr_t other = 0; other < threads; ++other) {
    const intptr_t owner = (thread + other) % threads;
    const int64_t all = own_pieces[owner].end;
    int64_t place = LOAD(own_pieces[owner].next);
    while (place < all) {
      int64_t size = (all - place) / SHARE;
      if (size < pool.least) size = pool.least;
      if (size > all - place) size = all - place;
      if (__atomic_compare_exchange_n(&own_pieces[owner].next, &place, place + size, 0, __ATOMIC_SEQ_CST,
                                      __ATOMIC_ACQUIRE)) {
        *first = (int32_t)place;
        *last = (int32_t)(place + size);
        return 1;
      }
    }
  }
  return 0;
}

/* Processes pieces until none is left, as the thread with this number. */
static void take(intptr_t thread, void* scratch) {
  const int64_t start = LOAD(pool.is_timed) ? nanoseconds() : 0;
  int32_t first, last;
  is_inside = 1;
  while (take_range(thread, &first, &last)) {
    const int32_t status = pool.task(pool.arguments, first, last, scratch);
    int32_t expected = 0;
    if (status != 0) {
      __atomic_compare_exchange_n(&pool.status, &expected, status, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
      for (int32_t other = 0; other <= pool.workers; ++other) STORE(own_pieces[other].next, own_pieces[other].end);
    }
  }
  is_inside = 0;
  if (start != 0) __atomic_fetch_add(&spent[thread], (uint64_t)(nanoseconds() - start), __ATOMIC_RELAXED);
}

/* Returns memory of at least `bytes` bytes, or NULL. */
static void* grown(scratch_space* space, uint64_t bytes) {
  if (bytes > space->bytes) {
    free(space->start);
    space->bytes = 0;
    space->start = bytes > SIZE_MAX - ALIGNMENT ? NULL : malloc((size_t)bytes + ALIGNMENT);
    if (space->start == NULL) return NULL;
    space->memory = (void*)(((uintptr_t)space->start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    space->bytes = bytes;
  }
  return space->memory;
}

/* Waits until the round is no longer `seen`; returns the new round. */
static uint32_t watch(uint32_t seen) {
  const int64_t end = nanoseconds() + WATCH_NS;
  uint32_t round;
  do {
    for (int look = 0; look < LOOKS; ++look) {
      round = LOAD(pool.round);
      if (round != seen) return round;
      PAUSE();
    }
  } while (nanoseconds() < end);
  LOCK();
  ADD(pool.sleeping, 1);
  while ((round = __atomic_load_n(&pool.round, __ATOMIC_SEQ_CST)) == seen) WAIT();
  ADD(pool.sleeping, -1);
  UNLOCK();
  return round;
}

static void work(intptr_t index) {
  scratch_space own = {NULL, NULL, 0};
  uint32_t round = 0;
  while (!LOAD(pool.is_over)) {
    int32_t door = LOAD(pool.door);
    while (door & OPEN) {
      if (!__atomic_compare_exchange_n(&pool.door, &door, door + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) continue;
      /* inside, so the work does not change until this thread leaves */
      if (index < pool.workers) {
        void* const scratch = pool.scratch_bytes ? grown(&own, pool.scratch_bytes) : NULL;
        if (scratch != NULL || pool.scratch_bytes == 0) take(index + 1, scratch);
      }
      ADD(pool.door, -1);
      break;
    }
    round = watch(round);
  }
  free(own.start);
}

static int32_t threads_asked(const char* variable) {
  const char* const text = getenv(variable);
  const long number = text == NULL ? 0 : strtol(text, NULL, 10);
  return number < 0 ? 0 : number > MOST_THREADS ? MOST_THREADS : (int32_t)number;
}

static int32_t threads(void) {
  int32_t count = LOAD(pool.threads);
  if (count == 0) {
    count = threads_asked("TVM_NUM_THREADS");
    if (count == 0) count = threads_asked("OMP_NUM_THREADS");
    if (count == 0) count = mlfc_cores();
    STORE(pool.threads, count);
  }
  return count;
}

static void set_threads(int32_t count) {
  STORE(pool.asked, 1);
  STORE(pool.threads, count < 0 ? 1 : count > MOST_THREADS ? MOST_THREADS : count);
}

static uint64_t launches(void) { return __atomic_load_n(&pool.launches, __ATOMIC_RELAXED); }

static void set_timed(int32_t is_timed) {
  if (is_timed && !LOAD(pool.is_timed)) {
    for (int32_t thread = 0; thread < MOST_THREADS; ++thread) {
      __atomic_store_n(&spent[thread], (uint64_t)0, __ATOMIC_RELAXED);
    }
  }
  STORE(pool.is_timed, is_timed);
}

static uint64_t time_of(int32_t thread) {
  return thread >= 0 && thread < MOST_THREADS ? __atomic_load_n(&spent[thread], __ATOMIC_RELAXED) : 0;
}

/* Distributes the work; the caller owns the pool. */
static int32_t share(mlfc_task* task, const void* arguments, int32_t count, int32_t helpers, uint64_t scratch_bytes) {
  const int64_t chunks = (int64_t)(helpers + 1) * CHUNKS;
  const int64_t least = count / chunks;
  while (pool.started < helpers && start_worker(pool.started)) ++pool.started;
  pool.task = task;
  pool.arguments = arguments;
  pool.least = least > 0 ? (int32_t)least : 1;
  pool.workers = helpers;
  pool.scratch_bytes = scratch_bytes;
  pool.status = 0;
  for (int64_t thread = 0; thread <= helpers; ++thread) {
    own_pieces[thread].end = count * (thread + 1) / (helpers + 1);
    STORE(own_pieces[thread].next, count * thread / (helpers + 1));
  }
  STORE(pool.door, OPEN);
  ADD(pool.round, 1);
  if (ADD(pool.sleeping, 0) > 0) {
    LOCK();
    WAKE();
    UNLOCK();
  }
  take(0, NULL);
  __atomic_fetch_and(&pool.door, ~OPEN, __ATOMIC_SEQ_CST);
  for (int64_t look = 0; LOAD(pool.door) != 0; ++look) {
    if (look < 20000) {
      PAUSE();
    } else {
      GIVE_WAY();
    }
  }
  return pool.status;
}

/* Returns whether the pool is this process's; in the child of a fork, one thread resets it first. */
static int own_pool(void) {
  const int32_t process = this_process();
  int32_t claimed = LOAD(pool.claimed);
  if (LOAD(pool.process) == process) return 1;
  if (claimed == process ||
      !__atomic_compare_exchange_n(&pool.claimed, &claimed, process, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    return 0;
  }
  STORE(pool.door, 0);
  STORE(pool.busy, 0);
  STORE(pool.sleeping, 0);
  pool.started = 0;
  renew_lock();
  STORE(pool.process, process);
  return 1;
}

/* Computes all pieces in the caller's thread. */
static int32_t alone(mlfc_task* task, const void* arguments, int32_t count) {
  const int64_t start = LOAD(pool.is_timed) && !is_inside ? nanoseconds() : 0;
  const int32_t status = task(arguments, 0, count, NULL);
  if (start != 0) __atomic_fetch_add(&spent[0], (uint64_t)(nanoseconds() - start), __ATOMIC_RELAXED);
  return status;
}

static int32_t run(mlfc_task* task, const void* arguments, int32_t count, int32_t most, uint64_t scratch_bytes) {
  int32_t helpers = most < count ? most : count, expected = 0, status;
  if (helpers > 1 && !is_inside) {
    const int32_t chosen = threads();
    helpers = (helpers < chosen ? helpers : chosen) - 1;
    if (helpers > 0 && own_pool() && __atomic_compare_exchange_n(&pool.busy, &expected, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      __atomic_store_n(&pool.launches, pool.launches + 1, __ATOMIC_RELAXED);
      status = share(task, arguments, count, helpers, scratch_bytes);
      STORE(pool.busy, 0);
      return status;
    }
  }
  return alone(task, arguments, count);
}

const mlfc_pool mlfc_own_pool = {2, run, set_threads, threads, launches, set_timed, time_of};

const mlfc_pool* mlfc_used_pool = NULL;

void mlfc_set_num_threads(int32_t count) { (mlfc_used_pool == NULL ? &mlfc_own_pool : mlfc_used_pool)->set_threads(count); }

static mlfc_parallel_for_function* handed_in = NULL;

void mlfc_set_parallel_for(mlfc_parallel_for_function* function) { handed_in = function; }

/* Returns whether threads are enabled: by a loader that shares a pool, by the program, or by its environment. */
static int is_asked(void) {
  if (mlfc_used_pool != NULL || handed_in != NULL) return 1;
  if (LOAD(pool.asked) == 0) {
    STORE(pool.asked, threads_asked("TVM_NUM_THREADS") > 0 || threads_asked("OMP_NUM_THREADS") > 0 ? 1 : -1);
  }
  return LOAD(pool.asked) > 0;
}

/* TVM's own threads ----------------------------------------------------------------------------------------------- */

#if defined(HAS_TVM_INTERFACE)

typedef struct {
  mlfc_task* task;
  const void* arguments;
  int32_t count;
  uint64_t scratch_bytes;
} tvm_work;

static int run_tvm_task(int task_id, TVMParallelGroupEnv* group, void* data) {
  const tvm_work* const given = (const tvm_work*)data;
  const int32_t tasks = group->num_task;
  const int32_t first = (int32_t)((int64_t)given->count * task_id / tasks);
  const int32_t last = (int32_t)((int64_t)given->count * (task_id + 1) / tasks);
  void* start = NULL;
  void* memory = NULL;
  int32_t status;
  if (first == last) return 0;
  if (given->scratch_bytes > 0 && task_id > 0) {
    start = malloc((size_t)given->scratch_bytes + ALIGNMENT);
    if (start == NULL) return -1;
    memory = (void*)(((uintptr_t)start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  }
  status = given->task(given->arguments, first, last, memory);
  free(start);
  return status;
}

#endif

int32_t mlfc_parallel_for(mlfc_task* task, const void* arguments, int32_t count, int32_t most, uint64_t scratch_bytes) {
  if (handed_in != NULL && most > 1 && count > 1) return handed_in(task, arguments, count, most, scratch_bytes);
#if defined(HAS_TVM_INTERFACE)
  if (__TVMBackendParallelLaunch != NULL && most > 1 && count > 1) {
    tvm_work work_ = {task, arguments, count, scratch_bytes};
    return __TVMBackendParallelLaunch(run_tvm_task, &work_, 0);
  }
#endif
  return (mlfc_used_pool == NULL ? &mlfc_own_pool : mlfc_used_pool)->run(task, arguments, count, most, scratch_bytes);
}

int32_t mlfc_parallel_for_if_asked(mlfc_task* task, const void* arguments, int32_t count, int32_t most,
                                   uint64_t scratch_bytes) {
#if defined(HAS_TVM_INTERFACE)
  if (__TVMBackendParallelLaunch != NULL) return mlfc_parallel_for(task, arguments, count, most, scratch_bytes);
#endif
  return is_asked() ? mlfc_parallel_for(task, arguments, count, most, scratch_bytes) : task(arguments, 0, count, NULL);
}
