"""Every C compiler of this machine, at every instruction set level that its processor can run."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mlfc.library.toolchain import NATIVE, Compiler, has_zig, named_compiler
from mlfc.target.features import CPUS, native_cpu

_NAMES = re.compile(r"(gcc|clang)(-\d+)?")
LEVELS = ("x86-64", "x86-64-v3", "x86-64-v4")
"""Microarchitecture levels of x86-64, lowest first."""


@dataclass(frozen=True)
class Build:
    """A compiler and its target level."""

    compiler: Compiler
    name: str
    level: str

    def __str__(self) -> str:
        return f"{self.name}-{self.level}"

    @property
    def flags(self) -> tuple[str, ...]:
        if self.level == "native":
            return (NATIVE,)
        return (f"-mcpu={self.level.replace('-', '_')}",) if self.compiler.is_zig else (f"-march={self.level}",)

    @property
    def linker(self) -> Compiler:
        """The compiler that links: the first one found in place of zig, which would first compile its own runtime."""
        return next(iter(compilers().values())) if self.compiler.is_zig else self.compiler


@cache
def compilers() -> dict[str, Compiler]:
    """Return the distinct compilers on the PATH and the ziglang wheel's, keyed by name."""
    found: dict[Path, str] = {}
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        names = [path.name for path in Path(folder).glob("*")] if folder else []
        for name in sorted(filter(_NAMES.fullmatch, names)):
            path = shutil.which(name, path=folder)
            if path:
                found[Path(path).resolve()] = path
    named = {Path(path).name: named_compiler(path) for path in found.values()}
    if has_zig():
        named["zig"] = named_compiler(f"{sys.executable} -m ziglang cc")
    return named


@cache
def runnable_levels() -> tuple[str, ...]:
    """Return the levels that this processor runs, and "native", which is the only one if it has none of them."""
    cpu = CPUS.get(native_cpu()).base or native_cpu()
    return (*LEVELS[: LEVELS.index(cpu) + 1], "native") if cpu in LEVELS else ("native",)


def builds() -> list[Build]:
    """Return every pair of a compiler and a level that this machine runs."""
    levels = runnable_levels()
    return [Build(compiler, name, level) for name, compiler in compilers().items() for level in levels]
