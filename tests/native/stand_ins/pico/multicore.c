#include <pico/multicore.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_t first;
static void (*entry_of_core1)(void);
static int waiting[2]; /* number of messages to each core */
static int asked;

static int this_core(void) { return !pthread_equal(pthread_self(), first); }

static void *run(void *unused) {
  entry_of_core1();
  return unused;
}

void multicore_launch_core1(void (*entry)(void)) {
  pthread_t core1;
  first = pthread_self();
  entry_of_core1 = entry;
  pthread_create(&core1, NULL, run, NULL);
}

void multicore_fifo_push_blocking(uint32_t data) {
  const int to = !this_core();
  (void)data;
  pthread_mutex_lock(&lock);
  while (waiting[to]) pthread_cond_wait(&changed, &lock);
  waiting[to] = 1;
  asked += to;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

uint32_t multicore_fifo_pop_blocking(void) {
  const int own = this_core();
  pthread_mutex_lock(&lock);
  while (!waiting[own]) pthread_cond_wait(&changed, &lock);
  waiting[own] = 0;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return 0;
}

int asked_core1(void) { return asked; }
