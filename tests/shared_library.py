"""Shared libraries of a test's C sources."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlfc.library.toolchain import NATIVE, compile_objects, link_shared, place_binary
from mlfc.support.content import Data


def compile_shared(
    files: Mapping[str, Data],
    out: str | os.PathLike[str],
    flags: Sequence[str] = (NATIVE,),
    *,
    includes: Sequence[str] | None = None,
) -> Path:
    """Compile `files` to the shared library `out`, which appears whole or not at all."""
    target = Path(out)
    with tempfile.TemporaryDirectory(prefix="mlfc-build-") as folder:
        objects = compile_objects(files, Path(folder), flags, includes=includes)
        place_binary(link_shared(objects, Path(folder) / "library.so", flags), target)
    return target
