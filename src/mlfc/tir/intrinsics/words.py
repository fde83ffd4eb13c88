"""Arithmetic on the bytes and 16-bit halves of a little-endian int32 word, and counter-based random bits.

Sums must not overflow. Random bits are Philox 4x32-10 of Salmon et al., SC 2011, as in PyTorch and others.
"""

from __future__ import annotations

from collections.abc import Callable

from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.registry import BodySteps, define, defined, shl, shr
from mlfc.tir.ir import Expr

_NOUNS = {"b": "bottom", "t": "top"}
_SUM = {"sum": "int32", "a": "int32", "b": "int32"}


def _half(word: Expr, letter: str) -> Expr:
    return shr(word, 16) if letter == "t" else tb.cast(tb.cast(word, "int16"), "int32")


def _byte(word: Expr, shift: int) -> Expr:
    return tb.cast(shr(word, shift), "int8")


def _added(total: Expr, *products: Expr) -> Expr:
    """Return a sum, computed as unsigned, so that partial sums do not overflow."""
    unsigned = tb.cast(total, "uint32")
    for product in products:
        unsigned = unsigned + tb.cast(product, "uint32")
    return tb.cast(unsigned, "int32")


@defined(word="int32")
def even_bytes(_: BodySteps, word: Expr) -> Expr:
    """Return bytes 0 and 2 of a word, widened to 16 bits."""
    bottom = tb.cast(_byte(word, 0), "uint32") & 0xFFFF
    return tb.cast(bottom | shl(tb.cast(_byte(word, 16), "uint32"), 16), "int32")


@defined(word="int32")
def odd_bytes(steps: BodySteps, word: Expr) -> Expr:
    """Return bytes 1 and 3 of a word, widened to 16 bits."""
    bits = steps.let("bits", tb.cast(word, "uint32"))
    return even_bytes(tb.cast(shr(bits, 8) | shl(bits, 24), "int32"))


@defined(word="int32")
def nibbles_up(_: BodySteps, word: Expr) -> Expr:
    """Return a word moved up by four bits."""
    return tb.cast(shl(tb.cast(word, "uint32"), 4), "int32")


@defined(**_SUM)
def dot2(_: BodySteps, total: Expr, a: Expr, b: Expr) -> Expr:
    """Return sum + the products of the 16-bit halves of two words."""
    return _added(total, *(_half(a, letter) * _half(b, letter) for letter in "bt"))


@defined(sum="int64", a="int32", b="int32")
def dot2_wide(_: BodySteps, total: Expr, a: Expr, b: Expr) -> Expr:
    """Return sum, of 64 bits, + the products of the 16-bit halves of two words."""
    bottom, top = (tb.cast(_half(a, letter) * _half(b, letter), "int64") for letter in "bt")
    return total + bottom + top


@defined(**_SUM)
def dot4_s8(_: BodySteps, total: Expr, a: Expr, b: Expr) -> Expr:
    """Return sum + the products of the signed bytes of two words."""
    factors = [[tb.cast(_byte(word, shift), "int32") for shift in (0, 8, 16, 24)] for word in (a, b)]
    return _added(total, *(x * y for x, y in zip(*factors, strict=True)))


def _mac(first: str, second: str) -> Callable[..., Expr]:
    def rule(_: BodySteps, total: Expr, a: Expr, b: Expr) -> Expr:
        return _added(total, _half(a, first) * _half(b, second))

    rule.__doc__ = f"Return sum + the {_NOUNS[first]} half of a * the {_NOUNS[second]} half of b."
    return rule


for _first in "bt":
    for _second in "bt":
        define(f"mac_{_first}{_second}", _mac(_first, _second), _SUM)


_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _wide(word: Expr) -> Expr:
    return tb.cast(word, "uint64")


def _high(product: Expr) -> Expr:
    return tb.cast(shr(product, 32), "uint32")


@defined(element="uint32", stream="uint32", run="uint64", key="uint64")
def philox(steps: BodySteps, element: Expr, stream: Expr, run: Expr, key: Expr) -> Expr:
    """Return the first two words of Philox 4x32-10, the first one below, for a counter of four words."""
    words = [element, stream, tb.cast(run, "uint32"), tb.cast(shr(run, 32), "uint32")]
    keys = [tb.cast(key, "uint32"), tb.cast(shr(key, 32), "uint32")]
    keys = [steps.let(f"key_{index}", word) for index, word in enumerate(keys)]
    for number in range(_ROUNDS):
        turn = [
            key + tb.const(number * step & 0xFFFFFFFF, "uint32") for key, step in zip(keys, _KEY_STEPS, strict=True)
        ]
        second = steps.let(f"product_2_{number}", _wide(words[2]) * tb.const(_MULTIPLIERS[1], "uint64"))
        word = _high(second) ^ words[1] ^ turn[0]
        # only two words are returned, so the last round omits the others, and the round before omits the first word
        head = [word if number == _ROUNDS - 2 else steps.let(f"word_0_{number}", word), tb.cast(second, "uint32")]
        if number == _ROUNDS - 1:
            break
        first = steps.let(f"product_0_{number}", _wide(words[0]) * tb.const(_MULTIPLIERS[0], "uint64"))
        tail = [steps.let(f"word_2_{number}", _high(first) ^ words[3] ^ turn[1]), tb.cast(first, "uint32")]
        words = [*head, *tail]
    return _wide(head[0]) | shl(_wide(head[1]), 32)
