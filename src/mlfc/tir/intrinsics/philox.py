"""Counter-based random bits: Philox 4x32-10 of Salmon et al., SC 2011, as in PyTorch and others."""

from __future__ import annotations

from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.registry import BodySteps, defined, shl, shr
from mlfc.tir.ir import Expr

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
