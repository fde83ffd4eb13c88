/* Nanoseconds of a cache line's round trip to another core, which cooperating threads wait for. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#define ROUNDS 300000

static int ball __attribute__((aligned(64)));

static void stay_on(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

static void play(int mine) {
  for (int round = 0; round < ROUNDS; ++round) {
    while (__atomic_load_n(&ball, __ATOMIC_ACQUIRE) != mine) {
    }
    __atomic_store_n(&ball, !mine, __ATOMIC_RELEASE);
  }
}

static void* other(void* nothing) {
  stay_on(1);
  play(1);
  return nothing;
}

int main(void) {
  pthread_t thread;
  struct timespec start, end;
  stay_on(0);
  if (pthread_create(&thread, NULL, other, NULL) != 0) return 1;
  clock_gettime(CLOCK_MONOTONIC, &start);
  play(0);
  pthread_join(thread, NULL);
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf("%.0f\n", ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / ROUNDS);
  return 0;
}
