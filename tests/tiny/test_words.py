"""Identifiers and pages use the field's terms and none of the rejected words below."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mlfc

ROOT = Path(mlfc.__file__).parent
CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", *sorted(CHECKOUT.glob("docs/**/*.md")), *sorted(CHECKOUT.glob("examples/**/*.md"))]

WORDS = {
    "lead": "overlap distance",
    "leads": "overlap distances",
    "stripe": "row tile",
    "stripes": "row tiles",
    "striped": "tiled",
    "heat": "access density",
    "lockstep": "SIMT interpreter",
    "ear": "output reader",
    "ears": "output readers",
    "overtakes": "store hazard",
    "spelling": "inline cost",
    "spellings": "inline costs",
    "jumps": "rounding sensitive",
    "reached": "aliased inputs",
    "moving": "strength reduction",
    "unify": "merge kernels",
    "unifier": "merger",
    "instantiate": "specialize",
    "dots": "matvec_s8",
    "rooms": "packages",
    "floors": "layers",
    "house": "architecture",
}
"""Words that identifiers must not contain, and their replacements."""

NAMES = {
    "Places": "DevicePlacement",
    "Placement": "DevicePlacement for devices, MemoryOptions and Allocation for memory",
    "WidenLate": "SinkDequantize",
    "constant_places": "assign_constants",
    "spread": "assign_pools",
    "split_bytes": "split_stores",
    "is_run": "is_block_intrinsic",
    "lower_stage": "lower_tiled",
}
"""Rejected names of files, classes, functions and attributes, and their replacements."""

ALLOWED = {
    ("micro/memory/stack_bound.py", "jumps"),  # jump instructions
    ("micro/memory/stack_bound.py", "reached"),  # functions reached by calls
    ("runtime/drivers/cuda.py", "instantiate"),  # the driver's function name
}

PHRASES = {
    r"of (theirs|ours|yours|mine)": "their own, our own, ...",
    r"(lies|lie|lay) in": "is in",
    r"tells? nothing": "does not state",
    r"(is|are) told": "is given, is configured",
    r"all that it": "everything it",
    r"what it takes": "what it needs",
    r"comes? along": "is built in, is included",
    r"(is|are) not there": "is missing",
    r"be had": "be downloaded, be bought, ...",
    r"lockstep": "SIMT",
    r"strip(e|es|ed)": "row tiles",
    r"two witnesses": "two estimates",
    r"passed over": "skipped",
}
"""Regular expressions of phrases that prose must not contain, and their replacements."""

ONE_CLASS = ("Tensor", "Block", "_Place", "Window", "Span", "Template", "AotExecutor")
"""Names that once belonged to several classes each."""

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# identifiers of files without any of these words need not be checked, nor the files parsed
_ANY = re.compile(
    rf"(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])|(?:{'|'.join(map(str.title, WORDS))})(?![a-z])"
    rf"|{'|'.join(map(str.upper, WORDS))}|{'|'.join(NAMES)}"
)


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and name of each identifier, and whether it is visible outside of a function."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name, True
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr, True
        elif isinstance(node, ast.alias):
            yield node.lineno, node.asname or node.name.rpartition(".")[2], True
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, False
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id, False


def test_identifiers_use_the_words_of_the_field() -> None:
    faults = []
    for path in sorted(ROOT.rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        found = [(0, part.removesuffix(".py"), True) for part in Path(where).parts]
        text = path.read_text(encoding="utf-8")
        found += identifiers(ast.parse(text)) if _ANY.search(text) else ()
        for line, name, lasting in found:
            words = [part.lower() for part in _PART.findall(name) if part.lower() in WORDS]
            wrong = [(word, WORDS[word]) for word in words if (where, word) not in ALLOWED]
            wrong += [(name, NAMES[name])] if lasting and name in NAMES else []
            faults += [f"{where}:{line}: {name}: instead of '{word}' say {better}" for word, better in wrong]
    assert not faults, "\n".join(sorted(set(faults)))


def prose(page: str) -> str:
    """Return a page's text without code, with normalized whitespace."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    text = re.sub(r"^    .*$", "", text, flags=re.M)
    return re.sub(r"\s+", " ", re.sub(r"`[^`]*`", "code", text))


def test_pages_are_in_plain_english() -> None:
    faults = []
    for path in PAGES:
        text = prose(path.read_text(encoding="utf-8"))
        for phrase, better in PHRASES.items():
            for match in re.finditer(rf"\b{phrase}\b", text, re.IGNORECASE):
                excerpt = text[max(match.start() - 40, 0) : match.end() + 20]
                faults.append(f"{path.relative_to(CHECKOUT)}: ...{excerpt}...: say {better}")
    assert not faults, "\n".join(faults)


def test_pages_wrap_at_100_columns() -> None:
    faults = []
    for path in PAGES:
        text = re.sub(r"^```.*?^```$", lambda code: "\n" * code[0].count("\n"), path.read_text(), flags=re.M | re.S)
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > 100 and not line.startswith(("|", "    ")):
                faults.append(f"{path.relative_to(CHECKOUT)}:{number}: {len(line)} columns")
    assert not faults, "\n".join(faults)


def test_names_of_classes_mean_one_thing() -> None:
    count = Counter(
        name
        for path in ROOT.rglob("*.py")
        for name in re.findall(r"^ *class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {name: count[name] for name in ONE_CLASS if count[name] > 1} == {}


def test_the_documentation_stays_short() -> None:
    texts = (
        re.sub(r"^    .*$", "", path.read_text(encoding="utf-8"), flags=re.M) for path in CHECKOUT.glob("docs/**/*.md")
    )
    words = (
        len(re.findall(r"\S*[A-Za-z0-9]\S*", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))) for text in texts
    )
    # words of sentences and tables, without code
    assert sum(words) <= 50_000
