"""Fuzz all readers, and the code of kernels: ``python -m fuzz [--seconds N]``; exit with 1 if anything fails."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from fuzz import c_readers, differential, graphs, model_files, open_graphs, open_sanitized
from fuzz.kernels import NAME, fuzz_kernels
from fuzz.python_readers import Failure, fuzz, targets


def main() -> int:
    """Run every fuzzer for its share of the time; return the exit status."""
    arguments = _arguments()
    if arguments.replay is not None:
        return int(differential.replayed(arguments.replay.read_bytes()))
    if arguments.mutants is not None:
        return int(_mutants(float("inf"), arguments.seed, arguments.mutants, arguments.out))
    in_python = [target for target in (*targets(), *model_files.targets()) if arguments.only in target.name]
    in_c = [target for target in c_readers.TARGETS if arguments.only in target]
    if in_c and not c_readers.available():
        print("skipping the C readers: clang not found", flush=True)
        in_c = []
    kernels = arguments.only in NAME
    whole = arguments.only in graphs.NAME
    is_open = arguments.only in open_graphs.NAME
    checked = arguments.only in open_sanitized.NAME
    mutated = arguments.only in differential.NAME
    share = arguments.seconds / max(1, len(in_python) + len(in_c) + kernels + whole + is_open + checked + mutated)
    failed = mutated and _mutants(share, arguments.seed, 1 << 60, arguments.out)
    for target in in_python:
        found = fuzz(target, share, arguments.seed)
        print(f"{target.name}: seed {arguments.seed}, {len(found)} failures", flush=True)
        for failure in found:
            failed = True
            _keep(failure, arguments.out)
    for failure in _in_c(in_c, share):
        failed = True
        _keep(failure, arguments.out)
    if whole:
        found = graphs.fuzz(share, arguments.seed, sanitized=c_readers.available())
        print(f"{graphs.NAME}: seed {arguments.seed}, {len(found)} failures", flush=True)
        for failure in found:
            failed = True
            _keep(failure, arguments.out)
    if is_open:
        refusals: Counter[str] = Counter()
        found = open_graphs.fuzz(share, arguments.seed, refusals=refusals)
        print(f"{open_graphs.NAME}: seed {arguments.seed}, {len(found)} failures, {refusals.total()} refused")
        for cause, count in refusals.most_common(9):
            print(f"  {count} x {cause[:200]}")
        for failure in found:
            failed = True
            _keep(failure, arguments.out)
    if checked:
        found = open_sanitized.fuzz(share, arguments.seed)
        print(f"{open_sanitized.NAME}: seed {arguments.seed}, {len(found)} failures", flush=True)
        for failure in found:
            failed = True
            _keep(failure, arguments.out)
    for failure in fuzz_kernels(share, arguments.seed) if kernels else ():
        failed = True
        _keep(failure, arguments.out)
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="total time; default 60")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the random inputs; default: the time"
    )
    parser.add_argument("--only", default="", help="fuzz only targets whose names contain this")
    parser.add_argument("--mutants", type=int, help="compare only this many mutants, without a time limit")
    parser.add_argument("--replay", type=Path, help="compare only a saved mutant, for every target and executor")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="folder for failing inputs")
    return parser.parse_args()


def _mutants(seconds: float, seed: int, most: int, out: Path) -> bool:
    """Compare mutants, print counts and refusals, and keep failures; return whether there are any."""
    counts: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    found = differential.fuzz(seconds, seed, mutants=most, counts=counts, refusals=refusals)
    ran = counts.total() - counts["invalid"]
    said = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    print(f"{differential.NAME}: seed {seed}, {ran} run by a reference: {said}", flush=True)
    for cause, count in refusals.most_common(40):
        print(f"  {count} x {cause[:200]}")
    for failure in found:
        _keep(failure, out)
    return bool(found)


def _in_c(names: list[str], seconds: float) -> Iterator[Failure]:
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            c_readers.build(name, Path(folder))
            outcome = c_readers.run(name, Path(folder), seconds=max(1, round(seconds)))
        print(f"{name}: {int(outcome.failure is not None)} failures", flush=True)
        if outcome.failure is not None:
            yield Failure(name, outcome.failure, outcome.log[-2000:])


def _keep(failure: Failure, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub('[^a-z]+', '_', failure.target.lower())}-{sha256(failure.data).hexdigest()[:16]}"
    path.write_bytes(failure.data)
    print(f"  {failure.target}: {failure.cause}\n  saved as {path}")


if __name__ == "__main__":
    sys.exit(main())
