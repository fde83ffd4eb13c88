"""The grammar of Relay text, and what its tokens are called in messages.

The grammar is LALR(1). A chain of infix operators of whatever precedence is one wide tree, whose parts the reader puts
together: a rule for each precedence would cost every number and variable as many steps as there are precedences.
Comments, the version line and the metadata section are gone before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from string import Template

from lark import Lark, Token

from mlfc.relay.text_literals import INTEGERS, STATIC_TYPE

_TEMPLATE = r"""
module: definition*
definition: "def" GLOBAL "(" [item ("," item)*] ")" ["->" type] "{" body "}"

?item: parameter | attribute
parameter: LOCAL [":" type]
attribute: NAME "=" value

body: statement* expression
?statement: GRAPH "=" expression ";"           -> binding
          | "let" LOCAL [":" type] "=" expression ";" -> let

?expression: operand | operand (_infix operand)+ -> chain
_infix: EQUALITY | RELATION | PLUS | MINUS | STAR | SLASH
?operand: $ATOM | callee (arguments | PROJECTION)+ -> applied
?callee: $ATOM
arguments: "(" [argument ("," argument)*] ")"
?argument: expression | attribute

function: "fn" "(" [item ("," item)*] ")" ["->" type] "{" body "}"
constant: "meta" "[" NAME "]" "[" NUMBER "]"

?value: $LITERAL
      | STRING -> string
      | "None" -> none
      | INTEGERS -> integers
      | "[" [value ("," value)*] "]" -> list
      | constant

?type: STATIC_TYPE -> static_type
     | "Tensor" "[" "(" [extent ("," extent)* [","]] ")" "," NAME "]" -> tensor_type
     | NAME -> scalar_type
     | "(" ")" -> tuple_type
     | "(" type "," [type ("," type)*] ")" -> tuple_type
extent: NUMBER | "?"

LOCAL: /%[A-Za-z_][A-Za-z0-9_\/]*/
GRAPH: /%[0-9]+/
GLOBAL: /@[A-Za-z_][A-Za-z0-9_\/]*/
NUMBER: /([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?([fiu][0-9]*)?|(inf|nan)f[0-9]*)(?![A-Za-z0-9_])/
NAME: /[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*/
PROJECTION: /\.[0-9]+/
STRING: /"(\\.|[^"\\\n])*"/
EQUALITY: "==" | "!="
RELATION: "<=" | ">=" | "<" | ">"
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
%ignore /[ \t\r\n\f]+/
"""
# Written out where they stand: each rule with a name between a word and the tree takes as long as reading the word.
_LITERAL = '[MINUS] NUMBER -> literal | "True" -> true | "False" -> false'
_ATOM = f"""LOCAL -> local
     | GRAPH -> local
     | GLOBAL -> global_function
     | NAME -> operator
     | {_LITERAL}
     | constant
     | function
     | "(" expression ")"
     | "(" ")" -> tuple
     | "(" expression "," [expression ("," expression)*] ")" -> tuple
"""
_RULES = Template(_TEMPLATE).substitute(ATOM=_ATOM, LITERAL=_LITERAL)
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


# Relay's keywords that stand for what a graph of static tensors does not have
_RESERVED = frozenset(("if", "else", "match", "type", "extern", "free_var", "ref", "ref_read", "ref_write"))
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
