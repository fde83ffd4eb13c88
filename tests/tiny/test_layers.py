"""The layers of docs/architecture.md: no import goes up, and the runtime uses the lowest layer alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import mlfc

ROOT = Path(mlfc.__file__).parent
LAYERS = (
    ("errors", "registry", "support", "objfile"),
    ("target", "relay", "tir"),
    ("ops", "kernels"),
    ("frontend", "transform", "memory", "codegen", "byoc", "isa"),
    ("library",),
    ("factory", "compiler", "problems"),
    ("archive",),
    ("micro",),
    ("verify", "compiled_model"),
    ("cli",),
)
LAYER_OF = {package: level for level, packages in enumerate(LAYERS) for package in packages}
RUNTIME_MAY_USE = {"errors", "registry", "support", "objfile", "runtime"}
CRT_MAY_USE = {"errors", "support", "crt"}


def imported_packages(path: Path) -> set[str]:
    """Return the packages of mlfc that a file imports, inside functions too."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        packages |= {name.split(".")[1] for name in names if name.startswith("mlfc.")}
    return packages & {*LAYER_OF, "runtime", "crt"}


def test_no_import_runs_upwards() -> None:
    faults = []
    for path in sorted(ROOT.rglob("*.py")):
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for other in imported_packages(path):
            if package == "runtime":
                wrong = other not in RUNTIME_MAY_USE
            elif package == "crt":
                wrong = other not in CRT_MAY_USE
            elif other in ("runtime", "crt"):
                wrong = LAYER_OF.get(package, 99) < LAYER_OF["library"]
            else:
                wrong = package in LAYER_OF and LAYER_OF[other] > LAYER_OF[package]
            if wrong:
                faults.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not faults


def test_every_package_is_in_a_layer() -> None:
    packages = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    packages -= {"__init__", "schema", "runtime", "crt", "__main__"}
    assert packages <= set(LAYER_OF)


def test_runtime_loads_without_the_compiler_and_drivers() -> None:
    code = (
        "import sys, mlfc.runtime as runtime;"
        "[getattr(runtime, name) for name in runtime.__all__];"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('onnx', 'tflite', 'lark', 'typer', 'rich', 'ziglang',"
        " 'llvmlite', 'onnxruntime', 'pyopencl', 'cuda', 'tvm_ffi')"
        " or m.startswith(('mlfc.relay', 'mlfc.tir', 'mlfc.ops', 'mlfc.codegen'))];"
        "print(bad); sys.exit(bool(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
