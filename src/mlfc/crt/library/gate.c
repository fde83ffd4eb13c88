/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*
 * A spin lock that stores the id of the process whose thread is inside, and needs no initialization or library. Threads
 * that find their own process id in it yield until it is zero. A run takes microseconds to milliseconds and never
 * reenters the gate.
 *
 * After a fork the child has one thread. If another one was inside, the child's copy of the gate has the parent's id
 * and would never be released: the next thread that enters takes it over.
 */
#include "mlfc_entry.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#define GIVE_WAY() ((void)SwitchToThread())
#define PROCESS() 1 /* the system has no fork */
#elif defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#include <unistd.h>
#define GIVE_WAY() ((void)sched_yield())
#define PROCESS() ((long)getpid())
#else /* no threads, or no known thread API */
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
