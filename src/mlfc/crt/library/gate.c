/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*
 * The number of the process whose thread is inside, so that nothing has to be made or linked for a gate: threads that
 * find their own process in it give their turn to others until it is zero. A run takes microseconds to milliseconds and
 * calls nothing that could come back here.
 *
 * After a fork the child has one thread. If another one was inside, the child's copy of the gate has the parent's
 * number, and nobody would ever leave: the next one who enters takes it over.
 */
#include "mlfc_entry.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#define GIVE_WAY() ((void)SwitchToThread())
#define PROCESS() 1 /* there is no fork */
#elif defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#include <unistd.h>
#define GIVE_WAY() ((void)sched_yield())
#define PROCESS() ((long)getpid())
#else /* no threads, or none that this could know */
#define GIVE_WAY() ((void)0)
#define PROCESS() 1
#endif

void mlfc_gate_enter(struct mlfc_gate* gate) {
  const long self = PROCESS();
  long inside = 0;
  while (!__atomic_compare_exchange_n(&gate->process, &inside, self, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    if (inside == self) {
      GIVE_WAY();
      inside = 0;
    }
  }
}

void mlfc_gate_leave(struct mlfc_gate* gate) { __atomic_store_n(&gate->process, 0, __ATOMIC_RELEASE); }
