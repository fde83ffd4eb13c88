/* Runs many parallel jobs from two threads at once and counts each piece; prints nothing unless a count is wrong. */
#include <mlfc_pool.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { PIECES = 1000, ROUNDS = 200 };

static int32_t add(const void* arguments, int32_t first, int32_t last, void* scratch) {
  int32_t* const counts = *(int32_t* const*)arguments;
  if (scratch != NULL) memset(scratch, 1, 100);
  for (int32_t piece = first; piece < last; ++piece) ++counts[piece];
  return 0;
}

static int32_t fail(const void* arguments, int32_t first, int32_t last, void* scratch) {
  (void)arguments, (void)scratch;
  return first <= 500 && 500 < last ? 7 : 0;
}

static int32_t nest(const void* arguments, int32_t first, int32_t last, void* scratch) {
  (void)first, (void)last, (void)scratch;
  return mlfc_parallel_for(add, arguments, 10, 10, 0);
}

static int32_t all_backwards(mlfc_task* task, const void* arguments, int32_t count, int32_t most, uint64_t bytes) {
  (void)most, (void)bytes;
  for (int32_t piece = count - 1; piece >= 0; --piece) {
    if (task(arguments, piece, piece + 1, NULL) != 0) return -1;
  }
  return 0;
}

static void* run(void* unused) {
  int32_t counts[PIECES] = {0};
  int32_t* const place = counts;
  (void)unused;
  for (int round = 0; round < ROUNDS; ++round) {
    mlfc_set_num_threads(1 + round % 5);
    if (mlfc_parallel_for(add, &place, PIECES, PIECES, 100) != 0) puts("failed");
  }
  for (int piece = 0; piece < PIECES; ++piece) {
    if (counts[piece] != ROUNDS) printf("piece %d: %d times\n", piece, (int)counts[piece]);
  }
  return NULL;
}

int main(void) {
  pthread_t other;
  int32_t counts[10] = {0};
  int32_t* const place = counts;
  if (mlfc_parallel_for_if_asked(add, &place, 10, 10, 0) != 0) puts("failed alone");
  if (mlfc_own_pool.launches() != 0) puts("threads that nobody asked for");
  mlfc_set_num_threads(2);
  if (mlfc_parallel_for_if_asked(add, &place, 10, 10, 0) != 0) puts("failed with two");
  if (mlfc_own_pool.launches() != 1) puts("no threads though they were asked for");
  pthread_create(&other, NULL, run, NULL);
  run(NULL);
  pthread_join(other, NULL);
  mlfc_set_num_threads(3);
  if (mlfc_parallel_for(fail, NULL, PIECES, PIECES, 0) != 7) puts("the failure is lost");
  if (mlfc_parallel_for(nest, &place, 1, 1, 0) != 0) puts("failed in a task");
  {
    const uint64_t before = mlfc_own_pool.launches();
    mlfc_set_parallel_for(all_backwards);
    if (mlfc_parallel_for(add, &place, 10, 10, 0) != 0) puts("failed as handed in");
    if (mlfc_parallel_for_if_asked(add, &place, 10, 10, 0) != 0) puts("failed as handed in, if asked");
    if (mlfc_own_pool.launches() != before) puts("the pool took what was handed in");
  }
  return 0;
}
