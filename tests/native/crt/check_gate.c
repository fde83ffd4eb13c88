/* A gate held by another thread while the process forks: closed in the parent, open in the child. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mlfc_entry.h"

#define WATCHDOG_S 120

static struct mlfc_gate gate;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int step;
static int others_ran;

static void go_to(int next) {
  pthread_mutex_lock(&mutex);
  step = next;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static void wait_for(int wanted) {
  pthread_mutex_lock(&mutex);
  while (step < wanted) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}

static void* hold(void* unused) {
  (void)unused;
  mlfc_gate_enter(&gate);
  go_to(1);
  wait_for(2);
  others_ran = 1;
  mlfc_gate_leave(&gate);
  return NULL;
}

static void* ignore(void* unused) { return unused; }

static int child(void) {
  pthread_t thread;
  alarm(WATCHDOG_S);
  mlfc_gate_enter(&gate);
  mlfc_gate_leave(&gate);
  /* again, with the child's own threads */
  mlfc_gate_enter(&gate);
  if (pthread_create(&thread, NULL, ignore, NULL) != 0 || pthread_join(thread, NULL) != 0) return 1;
  mlfc_gate_leave(&gate);
  return 0;
}

int main(void) {
  pthread_t thread;
  int status = -1;
  pid_t made;
  if (pthread_create(&thread, NULL, hold, NULL) != 0) return 1;
  wait_for(1);
  made = fork();
  if (made == 0) _exit(child());
  if (made < 0 || waitpid(made, &status, 0) != made || status != 0) {
    fprintf(stderr, "the child ended with status %d\n", status);
    return 1;
  }
  go_to(2);
  mlfc_gate_enter(&gate); /* the child did not open the parent's gate */
  if (!others_ran) return 2;
  mlfc_gate_leave(&gate);
  return pthread_join(thread, NULL);
}
