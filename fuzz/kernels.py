"""Random fused chains, by every compiler at every level and by LLVM, compared with the tir interpreter."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fuzz.python_readers import Failure
from mlfc.library.toolchain import NATIVE
from tests.native.compiler_levels import builds, runnable_levels
from tests.native.differential import Batch
from tests.native.fused_chains import covering, random_chains

NAME = "fused kernels"
_CHAINS = 48  # per batch


def fuzz_kernels(seconds: float, seed: int) -> Iterator[Failure]:
    """Yield each chain that some build computes wrongly; the first round always covers all builds.

    Parameters
    ----------
    seconds : float
        Time during which new rounds start.
    seed : int
        Of the first round. Seed, build and chain name suffice to reproduce a failure.
    """
    end = time.monotonic() + seconds
    found = 0
    rounds = 0
    while not rounds or time.monotonic() < end:
        for level in runnable_levels():
            batch = Batch([*covering(seed + rounds), *random_chains(seed + rounds, _CHAINS)], f"c -mcpu={level}")
            for how, faults in _by_all(batch, level):
                found += len(faults)
                for fault in faults:
                    cause = f"{how}, seed {seed + rounds}: {fault}"
                    yield Failure(NAME, batch.source.encode(), cause)
        rounds += 1
    print(f"{NAME}: seed {seed}, {rounds} rounds, {found} failures", flush=True)


def _by_all(batch: Batch, level: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the faults of each build for a level, and of LLVM's code for the lowest and the native level."""
    for build in builds():
        if build.level == level:
            with tempfile.TemporaryDirectory() as folder:
                yield str(build), batch.faults_in_c(build, Path(folder))
    if level in (runnable_levels()[0], "native"):
        yield f"llvm-{level}", batch.faults_by_llvm((NATIVE,) if level == "native" else ())
