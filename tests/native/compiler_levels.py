"""Every C compiler of this machine, at every level of the processor's instructions that it can run."""

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
"""Of processors of PCs, from the least on."""


@dataclass(frozen=True)
class Build:
    """A compiler and its options for the processor."""

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
        """The compiler that links: zig would compile a runtime of its own first."""
        return next(iter(compilers().values())) if self.compiler.is_zig else self.compiler


@cache
def compilers() -> dict[str, Compiler]:
    """Return the compilers on the PATH, each once, and that of the ziglang wheel, by name."""
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
    """Return the levels that this processor runs, and what it is itself; where it is none of them, that alone."""
    cpu = CPUS.get(native_cpu()).base or native_cpu()
    return (*LEVELS[: LEVELS.index(cpu) + 1], "native") if cpu in LEVELS else ("native",)


def builds() -> list[Build]:
    """Return what code can be built and run with here, where compilers know the names of the levels."""
    levels = runnable_levels()
    return [Build(compiler, name, level) for name, compiler in compilers().items() for level in levels]
