"""Passes, printers and checkers decide about operators by their declared traits, not by their names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import mlfc.ops
from mlfc.relay.op import OPERATORS

SOURCE = Path(mlfc.ops.__file__).parents[1]
# packages that build or define operators
BUILDERS = ("ops/", "kernels/", "frontend/")
# strings that equal operator names by accident or name them in TVM, with their meaning
OTHERS = {
    "archive/read/recovered.py": "what TVM's passes rewrite",
    "archive/read/text_expressions.py": "what TVM's passes rewrite",
    "byoc/cmsis_nn.py": "kinds of patterns",
    "relay/text_types.py": "functions of dimension expressions, and TVM's Any",
    "verify/inputs.py": "titles of sets of inputs",
}
# calls that match a composition of operators, and tables of rewrite rules
MATCHING = ("match_call", "apply_rules")
RULES = "_RULES"
PREFIXES = ("nn.", "qnn.", "image.", "list_", "ml.", "random.", "signal.", "vision.")
PARTS = ("startswith", "endswith", "removeprefix", "removesuffix")


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in OPERATORS


def _leaves(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]


def _allowed(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes of patterns and of tables of rewrite rules."""
    roots: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (*MATCHING, "super().__init__"):
            roots += node.args
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == RULES and node.value is not None:
            roots.append(node.value)
    return {node for root in roots for node in ast.walk(root)}


def _decisions(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the operator names that code compares with, looks up, or strips prefixes and suffixes from."""
    allowed = _allowed(tree)
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            found = [leaf for side in (node.left, *node.comparators) for leaf in _leaves(side) if _is_name(leaf)]
        elif isinstance(node, ast.MatchValue):
            found = [node.value] if _is_name(node.value) else []
        elif isinstance(node, ast.Dict):
            found = [key for key in node.keys if key is not None and _is_name(key)]
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)) and len(node.elts) > 1:
            found = node.elts if all(map(_is_name, node.elts)) else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARTS:
            leaves = [leaf for arg in node.args for leaf in _leaves(arg)]
            found = [leaf for leaf in leaves if isinstance(leaf, ast.Constant) and leaf.value in PREFIXES]
        yield from (item for item in found if item not in allowed)


@cache
def _found() -> dict[str, list[str]]:
    """Return the decisions in each source file, with their lines."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name, text = path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8")
        if not name.startswith(BUILDERS) and "mlfc.relay" in text:
            found[name] = [f"{item.lineno}: {ast.unparse(item)}" for item in _decisions(ast.parse(text))]
    return {name: items for name, items in found.items() if items}


def test_no_pass_decides_by_the_name_of_an_operator() -> None:
    unexpected = {name: items for name, items in _found().items() if name not in OTHERS}
    assert unexpected == {}, "declare a trait in mlfc.ops and ask for it"


def test_every_exception_is_needed() -> None:
    assert OTHERS.keys() <= _found().keys()


def test_such_decisions_are_found() -> None:
    code = """
if op_name(x) == "nn.dense": pass
if name in ("add", "subtract"): pass
TABLE = {"nn.conv2d": 1}
SUMS = frozenset({"add", "subtract"})
short = name.removeprefix("qnn.")
match name:
    case "concatenate": pass
call = match_call(x, "nn.pad", "transpose")
_RULES: dict[str, Rule] = {"take": take}
made = ir.call("nn.relu", [x])
"""
    lines = sorted({item.lineno for item in _decisions(ast.parse(code))})
    assert lines == [2, 3, 4, 5, 6, 8]
