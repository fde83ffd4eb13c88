"""The parser of Relay text, whose grammar is in `text_grammar.lark`, and what its tokens are called in messages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from lark import Lark, Token

from mlfc.relay.text_literals import INTEGERS, STATIC_TYPE

_RULES = Path(__file__).with_suffix(".lark").read_text(encoding="utf-8")
_GRAMMAR = f"{_RULES}INTEGERS.1: /{INTEGERS}/\nSTATIC_TYPE.1: /{STATIC_TYPE}/\n"
_DESCRIPTIONS = {
    "LOCAL": "a variable such as %x",
    "GRAPH": "a numbered variable such as %0",
    "GLOBAL": "a function name such as @main",
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a string",
    "INTEGERS": "`[`",
    "STATIC_TYPE": "`Tensor`",
    "PROJECTION": "a projection such as .0",
    "EQUALITY": "`==`",
    "RELATION": "`<`",
    "$END": "the end of the text",
}


# Relay's keywords that stand for what a graph of tensors does not have
_RESERVED = frozenset(("match", "type", "extern", "free_var", "ref", "ref_read", "ref_write"))
RESERVED = "RESERVED"


def _told_apart(token: Token) -> Token:
    return token.update(type=RESERVED) if token in _RESERVED else token


@cache
def parser() -> Lark:
    """Return the parser; it is made once. Reserved words become tokens that fit nowhere."""
    return Lark(
        _GRAMMAR,
        start="module",
        parser="lalr",
        maybe_placeholders=False,
        propagate_positions=True,
        lexer_callbacks={"NAME": _told_apart},
    )


def described(terminals: Iterable[str]) -> str:
    """Return a readable list of terminals, in a fixed order."""
    patterns = {terminal.name: terminal.pattern.value for terminal in parser().terminals}
    words = {_DESCRIPTIONS.get(name, f"`{patterns.get(name, name)}`") for name in terminals}
    # the operators can follow every expression: naming them all hides what is missing
    words -= {"`==`", "`<`", "`+`", "`-`", "`*`", "`/`"} if len(words) > 6 else set()
    ordered = sorted(words)
    return ", ".join(ordered[:-1]) + f" or {ordered[-1]}" if len(ordered) > 1 else "".join(ordered)
