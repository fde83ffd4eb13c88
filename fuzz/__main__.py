"""Fuzz the readers: ``python -m fuzz --seconds 600``; what they do not stand is written to a folder, and status 1."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import time
from hashlib import sha256
from pathlib import Path

from fuzz.python_readers import Failure, fuzz, targets


def main() -> int:
    """Run every fuzzer for its share of the time; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="in all; default 60")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random inputs; default the time")
    parser.add_argument("--only", default="", help="a word in the names of the readers to fuzz")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="where inputs that fail are kept")
    arguments = parser.parse_args()
    with_c = not arguments.only and importlib.util.find_spec("fuzz.c_readers") is not None
    failures = _python(arguments.seconds / (2 if with_c else 1), arguments.seed, arguments.only)
    for failure in failures:
        _keep(failure, arguments.out)
    status = int(bool(failures))
    if with_c:
        from fuzz import c_readers

        status |= c_readers.run(arguments.seconds / 2)
    return status


def _python(seconds: float, seed: int, word: str) -> list[Failure]:
    chosen = [target for target in targets() if word in target.name]
    failures: list[Failure] = []
    for target in chosen:
        found = fuzz(target, seconds / len(chosen), seed)
        print(f"{target.name}: seed {seed}, {len(found)} failures", flush=True)
        failures += found
    return failures


def _keep(failure: Failure, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub('[^a-z]+', '_', failure.target.lower())}-{sha256(failure.data).hexdigest()[:16]}"
    path.write_bytes(failure.data)
    print(f"  {failure.target}: {failure.cause}\n  kept as {path}")


if __name__ == "__main__":
    sys.exit(main())
