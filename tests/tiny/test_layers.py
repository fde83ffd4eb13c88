"""The layers of docs/architecture.md: imports never go up or form cycles, and the runtime is independent."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

import mlfc

ROOT = Path(mlfc.__file__).parent
LAYERS = (
    ("errors", "registry", "support", "objfile"),
    ("target", "relay", "tir"),
    ("kernels",),
    ("ops", "byoc"),
    ("frontend", "transform", "memory", "options", "operators"),
    ("codegen",),
    ("isa",),
    ("library",),
    ("factory", "compiler", "problems"),
    ("archive",),
    ("micro", "cluster", "publish"),
    ("verify", "specializing", "compiled_model", "onnx_backend", "graph_executor", "torch"),
    ("tuning", "matrix", "quantize", "debug_executor", "compat"),
    ("cli",),
)
LAYER_OF = {package: level for level, packages in enumerate(LAYERS) for package in packages}
RUNTIME_MAY_USE = {"errors", "registry", "support", "objfile", "runtime"}
CRT_MAY_USE = {"errors", "support", "crt"}

Kind = Literal["module", "function", "types"]
Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Import:
    """An import of one file by another; `kind` is at load time, within a function, or for annotations only."""

    source: str
    target: str
    kind: Kind


@cache
def imports() -> tuple[Import, ...]:
    """Return the imports between the files of mlfc by dotted name; a package is its ``__init__``."""
    files = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
    found = []
    for name, path in files.items():
        for node, kind in import_statements(ast.parse(path.read_text()), "module"):
            targets = {target if target in files else target.rpartition(".")[0] for target in imported_names(node)}
            found += [Import(name, target, kind) for target in sorted(targets & {*files} - {name})]
    return tuple(found)


def module_name(path: Path) -> str:
    """Return the dotted name of a file."""
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def import_statements(node: ast.AST, kind: Kind) -> Iterator[tuple[ast.AST, Kind]]:
    """Yield the imports below a node of a file's syntax tree, with their kinds."""
    # descend only into statements and their containers, as expressions do not import
    parts = (getattr(node, field, ()) for field in ("body", "orelse", "finalbody", "handlers", "cases"))
    for child in (each for part in parts for each in part):
        below = kind
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            below = "function"
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            below = "types"
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, kind
        yield from import_statements(child, below)


def imported_names(node: ast.AST) -> list[str]:
    """Return the dotted names that a statement imports: modules or names in them."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def cycles(graph: Graph) -> list[str]:
    """Return one cycle for each node that is on a cycle but not on one already returned, as ``a > b > a``."""
    shown: list[str] = []
    seen: set[str] = set()
    for start in sorted(graph):
        if start in seen:
            continue
        path = way(graph, start)
        if path:
            seen.update(path)
            shown.append(" > ".join(path))
    return shown


def way(graph: Graph, start: str) -> list[str]:
    """Return the shortest path from a node back to itself, or an empty list."""
    reached: dict[str, str] = {}
    front = [start]
    while front:
        following = []
        for node in front:
            for other in sorted(graph.get(node, ())):
                if other == start:
                    path = [node, start]
                    while path[0] != start:
                        path.insert(0, reached[path[0]])
                    return path
                if other not in reached:
                    reached[other] = node
                    following.append(other)
        front = following
    return []


def graph_of_files(kinds: set[Kind]) -> Graph:
    """Return the graph of imports between files."""
    graph = defaultdict(set)
    for item in imports():
        if item.kind in kinds:
            graph[item.source].add(item.target)
    return graph


def graphs_of_folders(kinds: set[Kind]) -> dict[str, Graph]:
    """Return, for each folder, the graph of imports between its files and subfolders."""
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for item in imports():
        if item.kind not in kinds:
            continue
        source, target = item.source.split("."), item.target.split(".")
        shared = 0
        while shared < min(len(source), len(target)) and source[shared] == target[shared]:
            shared += 1
        if shared < min(len(source), len(target)):
            graphs[".".join(source[:shared])][source[shared]].add(target[shared])
    return dict(graphs)


def test_no_import_runs_upwards() -> None:
    faults = set()
    for item in imports():
        if item.source == "mlfc" or item.target == "mlfc":
            continue
        package, other = item.source.split(".")[1], item.target.split(".")[1]
        if package == "runtime":
            wrong = other not in RUNTIME_MAY_USE
        elif package == "crt":
            wrong = other not in CRT_MAY_USE
        elif other in ("runtime", "crt"):
            wrong = LAYER_OF.get(package, 99) < LAYER_OF["library"]
        else:
            wrong = package in LAYER_OF and LAYER_OF.get(other, 0) > LAYER_OF[package]
        if wrong:
            faults.add(f"{item.source} imports {item.target}")
    assert not faults


def test_the_architecture_page_lists_the_layers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = [{*re.findall(r"`([a-z_]+)`", line)} for line in re.findall(r"^\d+\. (.*)$", page, re.MULTILINE)]
    assert listed == [{*packages} for packages in LAYERS]


def test_every_package_is_in_a_layer() -> None:
    packages = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    packages -= {"__init__", "schema", "runtime", "crt", "__main__"}
    assert packages <= set(LAYER_OF)


@pytest.mark.parametrize("kinds", [("module",), ("module", "function")])
def test_files_form_no_cycle(kinds: tuple[Kind, ...]) -> None:
    assert cycles(graph_of_files(set(kinds))) == []


def test_folders_form_no_cycle() -> None:
    """Check cycles between packages, also within a layer, and between the files and folders inside each of them."""
    found = {
        folder: faults
        for folder, graph in graphs_of_folders({"module", "function"}).items()
        if (faults := cycles(graph))
    }
    assert found == {}


def test_packages_form_no_cycle_in_their_annotations_either() -> None:
    assert cycles(graphs_of_folders({"module", "function", "types"})["mlfc"]) == []


def test_a_cycle_is_found_and_shown() -> None:
    assert cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"d"}}) == ["a > b > c > a", "d > d"]
    assert cycles({"a": {"b", "c"}, "b": {"c"}}) == []


def test_no_file_below_imports_the_public_face() -> None:
    assert [item.source for item in imports() if item.target == "mlfc" and not item.source.startswith("mlfc.cli")] == []


def test_runtime_loads_without_the_compiler_and_drivers() -> None:
    code = (
        "import sys, mlfc.runtime as runtime;"
        "[getattr(runtime, name) for name in runtime.__all__];"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('onnx', 'tflite', 'lark', 'typer', 'rich', 'ziglang',"
        " 'llvmlite', 'onnxruntime', 'pyopencl', 'cuda', 'tvm_ffi', 'requests')"
        " or m.startswith(('mlfc.relay', 'mlfc.tir', 'mlfc.ops', 'mlfc.codegen'))];"
        "print(bad); sys.exit(bool(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
