"""The work of compiling a model: packages that it imports, and analyses that it repeats. No test measures time."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import mlfc
from mlfc.codegen import statements
from mlfc.support.garbage import collected_rarely
from mlfc.tir import ir, visitor
from mlfc.tir.builder import const
from mlfc.tir.ir import PrimFunc, Stmt

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits_int8.tflite"
# what a session and `mlfc compile` import before they read a TFLite model
IMPORTS = """
import sys
import mlfc.archive.write.rebuild, mlfc.cli.main, mlfc.codegen.llvm.objects, mlfc.compat.onnxruntime.compiled
import mlfc.compiler, mlfc.frontend.tflite
from mlfc.byoc import find_generators
find_generators(())
print(*sys.modules)
"""


def test_packages_for_other_models_and_commands_are_not_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    found = {name.partition(".")[0] for name in done.stdout.split()}
    assert {"mlfc", "llvmlite", "tflite"} <= found
    assert found.isdisjoint({"jinja2", "jsonschema", "lark", "onnx", "onnxruntime", "rich", "scipy", "torch"})


def test_no_function_is_analysed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    held, canonical = statements.held_intervals, visitor._canonical
    analysed: Counter[Stmt] = Counter()
    compared: Counter[PrimFunc] = Counter()

    def counted_intervals(body: Stmt) -> object:
        analysed[body] += 1
        return held(body)

    def counted_text(prim: PrimFunc) -> str:
        compared[prim] += 1
        return canonical(prim)

    monkeypatch.setattr(statements, "held_intervals", counted_intervals)
    monkeypatch.setattr(visitor, "_canonical", counted_text)
    module, params = mlfc.import_model(DIGITS)
    files = mlfc.build(module, "c -mcpu=auto -mtriple=x86_64-linux-gnu", params).code.files
    defined = sum(bytes(data).count(b"\n/* fused_") for name, data in files.items() if name.endswith(".c"))
    printed = [body for body in analysed if not isinstance(body, ir.Seq) or body.stmts]  # heads have no body
    assert len(printed) == defined > len({prim.name for prim in compared})  # kernels for several levels
    assert set(analysed.values()) == set(compared.values()) == {1}


def test_expressions_of_a_statement_are_walked_once() -> None:
    buffer = ir.Buffer("b", (4,), "int32")
    store = ir.Store(buffer, (const(1),), ir.Load(buffer, (const(2),), "int32"))
    assert visitor.own_nodes(store) is visitor.own_nodes(store)
    assert [type(node).__name__ for node in visitor.own_nodes(store)] == ["Const", "Load", "Const"]


def test_garbage_is_collected_as_before_after_a_build() -> None:
    usual = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        with collected_rarely(), collected_rarely():
            assert gc.get_threshold()[0] > 10_000
        assert gc.get_threshold() == (700, 10, 10)
        with pytest.raises(ValueError, match="stop"), collected_rarely():
            raise ValueError("stop")
        assert gc.get_threshold() == (700, 10, 10)
        gc.set_threshold(0)  # switched off by the program
        with collected_rarely():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*usual)
