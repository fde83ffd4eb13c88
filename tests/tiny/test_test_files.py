"""Test files have unique names, because pytest rejects duplicates, and their imports exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
# mypy checks names imported from mlfc itself
PACKAGES = ("tests", "benchmarks", "fuzz")
_TAKES = re.compile(rf"\bfrom\s+(?:{'|'.join(PACKAGES)})\b".encode())


def test_names_are_unique() -> None:
    count = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, number in count.items() if number > 1] == []


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import from other files of the project."""
    text = path.read_bytes()
    # most of the time is spent in parsing, and many files import nothing from others
    for node in ast.walk(ast.parse(text)) if _TAKES.search(text) else ():
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            yield from ((node.module, alias.name) for alias in node.names)


@cache
def defined(module: str) -> set[str]:
    """Return the names that a module defines, with its submodules."""
    path = ROOT.joinpath(*module.split("."))
    names = {each.stem for each in path.iterdir()} if path.is_dir() else set()
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(file.read_bytes())) if file.exists() else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.split(".")[0])
    return names


def test_what_a_file_takes_from_another_one_is_there() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name} of {module}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for module, name in imports(path)
        if name not in defined(module)
    ]
    assert missing == []
