"""Instruction sets are discovered, not listed: a new one is defined in `mlfc.isa` alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import mlfc
from mlfc.target.features import CPUS, INSTRUCTION_SETS

ROOT = Path(mlfc.__file__).parent
OTHERS = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] != "isa"]
# CMSIS-NN's functions need more memory on some cores
KNOWS_FAMILIES = {"byoc/cmsis_nn.py"}


def test_nothing_imports_a_family_by_name() -> None:
    found = [path for path in OTHERS if re.search(r"^\s*(from|import) mlfc\.isa\b", path.read_text(), re.MULTILINE)]
    assert not found


def test_nothing_else_names_a_family() -> None:
    word = re.compile(rf'"({"|".join(INSTRUCTION_SETS)})"')
    found = {str(path.relative_to(ROOT)) for path in OTHERS if word.search(path.read_text())}
    assert found == KNOWS_FAMILIES


def test_processors_name_families_that_exist() -> None:
    named = {name for cpu in CPUS for name in CPUS.get(cpu).features.instruction_sets}
    assert named
    assert named <= set(INSTRUCTION_SETS)


def test_a_target_string_is_read_without_printers_and_llvm() -> None:
    code = (
        "import sys; from mlfc.target.target import parse_target; parse_target('c -mcpu=cortex-m4');"
        "bad = [m for m in sys.modules if m.startswith(('llvmlite', 'mlfc.codegen', 'mlfc.isa.dsp.c'))];"
        "print(bad); sys.exit(bool(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
