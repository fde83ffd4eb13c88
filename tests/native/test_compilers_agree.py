"""Fused chains with every compiler at every level, against the interpreter, which shares no code with the printers."""

from __future__ import annotations

import ast
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import mlfc
from mlfc.library.toolchain import NATIVE, run_tool
from tests.native.compiler_levels import Build, builds, compilers, runnable_levels
from tests.native.differential import Batch
from tests.native.fused_chains import Chain, chain_of, covering, without_tail

SEED = 11
# former miscompilations: a slope per channel behind a residual, and repeating copies
KNOWN = [("conv_1x1_large", "where", 32), ("conv_1x1_large", "where", 48), ("tile", "residual", 4)]
KNOWN += [("tile_twice", "copy", 8), ("tile_often", "copy", 4), ("concatenate", "where", 16)]
SOURCES = Path(mlfc.__file__).parent


def known() -> list[Chain]:
    return [chain_of(layer, [tail], channels, SEED) for layer, tail, channels in KNOWN]


@cache
def batch(level: str, start: int = 0, step: int = 1) -> Batch:
    """Return the known miscompiled chains, and every `step`-th other chain, for a level."""
    return Batch([*known(), *covering(SEED)[start::step]], f"c -mcpu={level}")


def batch_for(level: str, name: str = "") -> Batch:
    """Return every chain for the native level, and a third of them for the lowest one, whose kernels are similar.

    Of several versions of the compiler `name`, only the last one compiles every chain, the others half.
    """
    if level != "native":
        return batch(level, 1, 3)
    versions = [other for other in compilers() if other.split("-")[0] == name.split("-", maxsplit=1)[0]]
    return batch(level, 0, 2) if name in versions[:-1] else batch(level)


def test_every_elementwise_operator_stands_in_a_chain() -> None:
    assert without_tail() == []


def sample() -> list[Build]:
    """Return the highest level of each compiler and the lowest of one gcc and one clang; `python -m fuzz` runs all."""
    highest = [build for build in builds() if build.level == "native"]
    least = {build.name.split("-")[0]: build for build in builds() if build.level == runnable_levels()[0]}
    return [*highest, *(build for kind, build in least.items() if kind in ("gcc", "clang") and build not in highest)]


@pytest.mark.parametrize("build", sample(), ids=str)
def test_c(build: Build, tmp_path: Path) -> None:
    assert batch_for(build.level, build.name).faults_in_c(build, tmp_path) == []


@pytest.mark.parametrize(("level", "half"), [("x86-64-v3", 0), ("x86-64-v4", 1)])
def test_gcc_masks_no_load(level: str, half: int, tmp_path: Path) -> None:
    """gcc 12 miscompiles masked loads on levels that few test machines support."""
    found = {name: compiler for name, compiler in compilers().items() if name.startswith("gcc")}
    if not found or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("there is no gcc for x86-64")
    (tmp_path / "kernels.c").write_text(batch(level, half, 2).source)
    for compiler in found.values():
        dump = ["-S", "-o", "kernels.s", "-fdump-tree-optimized=optimized.txt"]
        run_tool([*compiler.command, *compiler.flags, f"-march={level}", *dump, "kernels.c"], tmp_path)
        assert "MASK_" not in (tmp_path / "optimized.txt").read_text()


@pytest.mark.parametrize("flags", [(), (NATIVE,)], ids=["x86-64", "native"])
def test_llvm(flags: tuple[str, ...]) -> None:
    level = "native" if flags else runnable_levels()[0]
    assert batch_for(level).faults_by_llvm(flags) == []


def imports(paths: Iterable[Path]) -> set[str]:
    """Return the modules of the package that files import, directly or indirectly."""
    found: set[str] = set()
    waiting = list(paths)
    while waiting:
        tree = ast.parse(waiting.pop().read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mlfc."):
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    file = SOURCES.parent / f"{name.replace('.', '/')}.py"
                    if name not in found and file.is_file():
                        found.add(name)
                        waiting.append(file)
    return found


def test_the_interpreter_shares_no_code_with_the_printers() -> None:
    meaning = {"mlfc.tir.interpreter", "mlfc.tir.numpy_expr"}
    used = imports([SOURCES / "tir" / "interpreter.py"])
    assert "mlfc.tir.numpy_expr" in used
    assert not [name for name in used if name.startswith("mlfc.codegen")]
    assert not meaning & imports((SOURCES / "codegen").rglob("*.py"))
