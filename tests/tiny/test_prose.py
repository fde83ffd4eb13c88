"""Docstrings, comments, messages and pages avoid the phrases that made our prose hard to read."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "benchmarks", "examples", "fuzz", "release", "docs")
PAGES = [path for name in ("*.md", "docs/**/*.md", "examples/**/*.md") for path in sorted(CHECKOUT.glob(name))]

_BETTER = "longer|more|less|later|earlier|better|worse|[a-z]+er than"
_BEFORE = "an?|the|each|every|one|per|of|first|last|next|other|all|these|some|many|few|[0-9]+|two|its"
PHRASES = {
    rf"(?:is|are|was|were) no(?! (?:{_BETTER}))": "negate the verb",
    r"(?:who|what)(?:so)?ever": "any, all, users, callers",
    r"(?:no|some|any|every)body": "users, callers, no caller",
    r"the run decides|decided by the run": "at run time",
    rf"(?:{_BEFORE}) turns?(?! (?:into|off|on|out|to|them))": "iteration",
    r"stated|told": "declared, provided, given",
    r"spelled out|spells? out": "unrolled, expanded, inlined",
}
"""Regular expressions of phrases that our prose avoids, and replacements."""

_OPENINGS = r"\s*(?:What|Which|How|Where|Whether|That|Whose|Who|Why|When)\b"
OPENING = re.compile(_OPENINGS)
"""Openings of docstrings, which start with a verb or a noun phrase."""

ALLOWED: dict[tuple[str, str], str] = {}
"""Phrases that stay, as (file, text that contains the phrase), with the reason."""

_ANY = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
_BLANKS = re.compile(r"\s*\n[\s#*/]*")


def strings(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and text of each docstring and long literal, and if it is a docstring."""
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.add(node.value)
    inside = {value for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (value.value if isinstance(value, ast.Constant) else "{}" for value in node.values)
            yield node.lineno, "".join(map(str, parts)), False
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.lineno, node.value, node in documented


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and text of each run of comments."""
    first, last, run = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if line != last + 1:
                if run:
                    yield first, run
                first, run = line, ""
            last, run = line, f"{run} {token.string.lstrip('#').strip()}"
    if run:
        yield first, run


def python_prose(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and text of each piece of prose in a module, and if it is a docstring; messages of `src` only."""
    text = path.read_text(encoding="utf-8")
    has_phrase = _ANY.search(_BLANKS.sub(" ", text))
    if has_phrase or re.search(rf'"""{_OPENINGS}', text):  # parsing every module takes long
        of_product = path.is_relative_to(CHECKOUT / "src")
        for line, piece, is_docstring in strings(ast.parse(text)):
            if is_docstring or (of_product and len(piece.split()) > 2):
                yield line, piece, is_docstring
    if has_phrase:
        yield from ((line, piece, False) for line, piece in comments(text))


def c_prose(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and text of each comment of a C source."""
    text = path.read_text(encoding="utf-8")
    for found in re.finditer(r"/\*.*?\*/|(?<!:)//[^\n]*(?:\n\s*//[^\n]*)*", text, re.DOTALL):
        yield text.count("\n", 0, found.start()) + 1, found[0], False


def page_prose(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and text of each paragraph of a page, without code."""
    text = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), path.read_text(), flags=re.M | re.S)
    for found in re.finditer(r"(?:^(?!    ).+\n?)+", text, re.MULTILINE):
        yield text.count("\n", 0, found.start()) + 1, re.sub(r"`[^`]*`", "`code`", found[0]), False


def faults(path: Path, pieces: Iterator[tuple[int, str, bool]]) -> Iterator[str]:
    """Yield a line for each phrase to replace in a file."""
    name = path.relative_to(CHECKOUT).as_posix()
    for line, piece, is_docstring in pieces:
        text = _BLANKS.sub(" ", piece)
        if any(where == name and excerpt in text for where, excerpt in ALLOWED):
            continue
        if is_docstring and OPENING.match(text):
            yield f"{name}:{line}: start with a verb or a noun phrase: {text[:60]}"
        for phrase, better in PHRASES.items():
            for found in re.finditer(rf"\b(?:{phrase})\b", text, re.IGNORECASE) if _ANY.search(text) else ():
                yield f"{name}:{line}: ...{text[max(found.start() - 40, 0) : found.end() + 20]}...: {better}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_modules_avoid_them(folder: str) -> None:
    modules = sorted((CHECKOUT / folder).rglob("*.py"))
    assert not [fault for path in modules for fault in faults(path, python_prose(path))]


def test_c_sources_and_pages_avoid_them() -> None:
    sources = [path for suffix in ("*.c", "*.h") for path in sorted((CHECKOUT / "src").rglob(suffix))]
    found = [fault for path in sources for fault in faults(path, c_prose(path))]
    assert not found + [fault for path in PAGES for fault in faults(path, page_prose(path))]


def test_every_exception_is_needed() -> None:
    assert len(ALLOWED) < 30
    for name, excerpt in ALLOWED:
        assert excerpt in _BLANKS.sub(" ", (CHECKOUT / name).read_text(encoding="utf-8")), f"{name}: {excerpt}"
        assert _ANY.search(excerpt), excerpt
