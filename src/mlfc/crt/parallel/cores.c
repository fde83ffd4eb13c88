/* Part of mlfc's C runtime. This code is yours to use as you like. SPDX-License-Identifier: 0BSD */
/* Number of cores of one socket that a process may use: transfers to another socket take longer than small kernels. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "mlfc_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
#elif defined(__unix__)
#include <unistd.h>
#endif

#if defined(__linux__)

#ifndef MLFC_SYS
#define MLFC_SYS "/sys"
#endif

/* The first number in a file, or -1. */
static long first_number(const char* path) {
  long number = -1;
  FILE* const file = fopen(path, "r");
  if (file == NULL) return -1;
  if (fscanf(file, "%ld", &number) != 1) number = -1;
  fclose(file);
  return number;
}

/* The CPU quota in a cgroup v2 folder, rounded up; 0 for none. */
static long quota_in(const char* folder) {
  char path[600];
  char text[64];
  long quota, period, cores = 0;
  FILE* file;
  snprintf(path, sizeof path, MLFC_SYS "/fs/cgroup%s/cpu.max", folder);
  file = fopen(path, "r");
  if (file == NULL) return 0;
  if (fscanf(file, "%63s %ld", text, &period) == 2 && period > 0 && strcmp(text, "max") != 0) {
    quota = strtol(text, NULL, 10);
    cores = quota > 0 ? (quota + period - 1) / period : 0;
  }
  fclose(file);
  return cores;
}

/* The smallest quota of the process's cgroup and its ancestors; 0 for none. */
static long quota_of_group(void) {
  char line[512];
  long least = quota_in("");
  FILE* const file = fopen("/proc/self/cgroup", "r");
  if (file != NULL) {
    while (fgets(line, (int)sizeof line, file) != NULL) {
      char* const folder = line + 3;
      if (strncmp(line, "0::/", 4) != 0) continue;
      folder[strcspn(folder, "\n")] = '\0';
      while (folder[0] != '\0' && folder[1] != '\0') {
        const long cores = quota_in(folder);
        if (cores > 0 && (least == 0 || cores < least)) least = cores;
        *strrchr(folder, '/') = '\0';
      }
    }
    fclose(file);
  }
  if (least == 0) {
    const long quota = first_number(MLFC_SYS "/fs/cgroup/cpu/cpu.cfs_quota_us");
    const long period = first_number(MLFC_SYS "/fs/cgroup/cpu/cpu.cfs_period_us");
    if (quota > 0 && period > 0) least = (quota + period - 1) / period;
  }
  return least;
}

/* A topology number of a processor, or -1. */
static long place_of(int cpu, const char* name) {
  char path[600];
  snprintf(path, sizeof path, MLFC_SYS "/devices/system/cpu/cpu%d/topology/%s", cpu, name);
  return first_number(path);
}

static long allowed_cores(void) {
  cpu_set_t allowed;
  long core[CPU_SETSIZE], socket[CPU_SETSIZE], most = 0, threads = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    const int is_allowed = CPU_ISSET(cpu, &allowed) != 0;
    threads += is_allowed;
    core[cpu] = is_allowed ? place_of(cpu, "core_id") : -1;
    socket[cpu] = is_allowed ? place_of(cpu, "physical_package_id") : -1;
    for (int other = 0; other < cpu && core[cpu] >= 0; ++other) {
      if (core[other] == core[cpu] && socket[other] == socket[cpu]) core[cpu] = -1; /* another thread of the core */
    }
  }
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    long cores = 0;
    for (int other = cpu; other < CPU_SETSIZE && core[cpu] >= 0; ++other) {
      cores += core[other] >= 0 && socket[other] == socket[cpu];
    }
    if (cores > most) most = cores;
  }
  return most > 0 ? most : threads;
}

#endif

int32_t mlfc_cores(void) {
  long cores = 1;
#if defined(_WIN32)
  SYSTEM_LOGICAL_PROCESSOR_INFORMATION* found;
  DWORD bytes = 0;
  DWORD_PTR allowed = 0, all = 0;
  GetLogicalProcessorInformation(NULL, &bytes);
  found = malloc(bytes ? bytes : 1);
  if (found != NULL && GetProcessAffinityMask(GetCurrentProcess(), &allowed, &all) &&
      GetLogicalProcessorInformation(found, &bytes)) {
    const DWORD count = bytes / (DWORD)sizeof *found;
    for (DWORD socket = 0; socket < count; ++socket) {
      long of_it = 0;
      if (found[socket].Relationship != RelationProcessorPackage) continue;
      for (DWORD place = 0; place < count; ++place) {
        of_it += found[place].Relationship == RelationProcessorCore &&
                 (found[place].ProcessorMask & found[socket].ProcessorMask & allowed) != 0;
      }
      if (of_it > cores) cores = of_it;
    }
  }
  free(found);
#elif defined(__APPLE__)
  int number = 1;
  size_t bytes = sizeof number;
  if (sysctlbyname("hw.perflevel0.physicalcpu", &number, &bytes, NULL, 0) == 0 ||
      sysctlbyname("hw.physicalcpu", &number, &bytes, NULL, 0) == 0) {
    cores = number;
  }
#elif defined(__linux__)
  const long quota = quota_of_group();
  cores = allowed_cores();
  if (quota > 0 && quota < cores) cores = quota;
#elif defined(__unix__)
  cores = sysconf(_SC_NPROCESSORS_ONLN);
#endif
  return cores < 1 ? 1 : cores > 1024 ? 1024 : (int32_t)cores;
}
