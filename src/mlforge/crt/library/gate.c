/* Part of mlforge's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/*
 * One flag, so that nothing has to be made or linked for it: threads that find it set give their turn to others until
 * it is not. A run takes microseconds to milliseconds and calls nothing that could come back here.
 */
#include "mlforge_entry.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#define GIVE_WAY() ((void)SwitchToThread())
#elif defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#define GIVE_WAY() ((void)sched_yield())
#else /* no threads, or none that this could know */
#define GIVE_WAY() ((void)0)
#endif

void mlforge_gate_enter(struct mlforge_gate* gate) {
  while (__atomic_test_and_set(&gate->taken, __ATOMIC_ACQUIRE)) GIVE_WAY();
}

void mlforge_gate_leave(struct mlforge_gate* gate) { __atomic_clear(&gate->taken, __ATOMIC_RELEASE); }
