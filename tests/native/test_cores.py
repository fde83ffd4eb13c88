"""The default number of threads, on simulated Linux machines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import need

POOL = Path(__file__).parents[2] / "src" / "mlfc" / "crt" / "parallel"
# its arguments are the first processor that the process may run on, and the first one behind those
MAIN = """
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include "mlfc_pool.h"
static int first, behind;
int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t* set) {
  (void)pid;
  (void)bytes;
  CPU_ZERO(set);
  for (int cpu = first; cpu < behind; ++cpu) CPU_SET(cpu, set);
  return 0;
}
int main(int count, char** words) {
  if (count != 3) return 2;
  first = atoi(words[1]);
  behind = atoi(words[2]);
  printf("%d", (int)mlfc_cores());
  return 0;
}
"""


def machine(folder: Path, sockets: int, cores: int, threads: int) -> Path:
    """Write Linux's description of a machine: first one thread of each core, socket by socket, then the others."""
    cpu = 0
    for _ in range(threads):
        for socket in range(sockets):
            for core in range(cores):
                place = folder / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
                place.mkdir(parents=True)
                (place / "core_id").write_text(f"{core}\n")
                (place / "physical_package_id").write_text(f"{socket}\n")
                cpu += 1
    return folder


def counted(folder: Path, first: int, behind: int) -> int:
    program = folder / "program"
    if not program.exists():
        (folder / "main.c").write_text(MAIN)
        flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{POOL}", f'-DMLFC_SYS="{folder}"']
        sources = [str(folder / "main.c"), str(POOL / "cores.c")]
        subprocess.run([need("gcc", "gcc"), *flags, *sources, "-o", str(program)], check=True)
    return int(subprocess.run([program, str(first), str(behind)], check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize(
    ("shape", "allowed", "expected"),
    [
        ((1, 8, 2), (0, 16), 8),  # each core once, regardless of its threads
        ((2, 12, 2), (0, 48), 12),  # those of one socket
        ((2, 12, 2), (6, 18), 6),  # half of each socket
        ((2, 12, 2), (2, 16), 10),  # the socket with more of them
        ((2, 12, 2), (24, 40), 12),  # second threads only, four of them on the other socket
        ((1, 1, 1), (0, 1), 1),
    ],
)
def test_cores_of_a_socket_are_counted(
    tmp_path: Path, shape: tuple[int, int, int], allowed: tuple[int, int], expected: int
) -> None:
    assert counted(machine(tmp_path, *shape), *allowed) == expected


def test_a_quota_is_the_limit_and_what_says_nothing_counts_threads(tmp_path: Path) -> None:
    assert counted(tmp_path, 0, 3) == 3
    folder = machine(tmp_path, 1, 8, 1) / "fs" / "cgroup"
    folder.mkdir(parents=True)
    for text, expected in (("250000 100000", 3), ("max 100000", 8), ("1600000 100000", 8)):
        (folder / "cpu.max").write_text(text)
        assert counted(tmp_path, 0, 8) == expected
