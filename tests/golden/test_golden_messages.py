"""Golden file of all error messages in the sources: update it with ``--update-golden``, and review the change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlfc
from mlfc import errors

FILE = Path(__file__).parent / "messages.txt"
CODES = {
    name: kind.code
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.MlfcError)
}
# methods that raise or record an error with a given text
REPORTERS = ("fault", "_fault", "refuse", "unsupported", "wrong")
_MOST_OF_A_PLACEHOLDER = 40


def texts_of(node: ast.expr) -> Iterator[str]:
    """Yield the possible texts of an expression, with source code in braces for embedded values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{placeholder(part)}}}" for part in node.values
        )
    elif isinstance(node, ast.IfExp):
        yield from texts_of(node.body)
        yield from texts_of(node.orelse)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for left in texts_of(node.left):
            yield from (left + right for right in texts_of(node.right))
    else:
        yield f"{{{placeholder(node)}}}"


def placeholder(node: ast.expr) -> str:
    text = ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node).replace('"', "'")
    return text if len(text) <= _MOST_OF_A_PLACEHOLDER else f"{text[: _MOST_OF_A_PLACEHOLDER - 3]}..."


def messages() -> Iterator[str]:
    for path in Path(mlfc.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name not in CODES and name not in REPORTERS:
                continue
            title = f"{CODES[name]} {name}" if name in CODES else name.lstrip("_")
            steps = [word.value for word in node.keywords if word.arg == "next_step"]
            advice = "".join(f" | {text}" for step in steps for text in texts_of(step))
            yield from (
                " ".join(f"{title}: {text}{advice}".split())
                for cause in node.args[:1]
                for text in texts_of(cause)
                if not (text.startswith("{") and text.find("}") == len(text) - 1)  # defined elsewhere
            )


def test_messages_are_the_golden_ones(request: pytest.FixtureRequest) -> None:
    text = "\n".join([*sorted(set(messages())), ""])
    if request.config.getoption("--update-golden"):
        FILE.write_text(text, encoding="utf-8")
    assert text == FILE.read_text(encoding="utf-8")
