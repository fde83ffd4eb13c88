"""Random bits from a counter: Philox 4x32-10 of Salmon and others, SC 2011, as PyTorch and others have it."""

from __future__ import annotations

from mlfc.tir import builder as tb
from mlfc.tir.intrinsics.registry import Steps, defined, shl, shr
from mlfc.tir.ir import Expr

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _wide(word: Expr) -> Expr:
    return tb.cast(word, "uint64")


@defined(element="uint32", stream="uint32", run="uint64", key="uint64")
def philox(steps: Steps, element: Expr, stream: Expr, run: Expr, key: Expr) -> Expr:
    """Return the first two words of Philox 4x32-10, the first one below, for a counter of four words."""
    words = [element, stream, tb.cast(run, "uint32"), tb.cast(shr(run, 32), "uint32")]
    keys = [tb.cast(key, "uint32"), tb.cast(shr(key, 32), "uint32")]
    keys = [steps.let(f"key_{index}", word) for index, word in enumerate(keys)]
    for number in range(_ROUNDS):
        first, second = (
            steps.let(f"product_{place}_{number}", _wide(words[place]) * tb.const(factor, "uint64"))
            for place, factor in zip((0, 2), _MULTIPLIERS, strict=True)
        )
        highs = [tb.cast(shr(product, 32), "uint32") for product in (first, second)]
        turn = [
            key + tb.const(number * step & 0xFFFFFFFF, "uint32") for key, step in zip(keys, _KEY_STEPS, strict=True)
        ]
        words = [
            steps.let(f"word_0_{number}", highs[1] ^ words[1] ^ turn[0]), tb.cast(second, "uint32"),
            steps.let(f"word_2_{number}", highs[0] ^ words[3] ^ turn[1]), tb.cast(first, "uint32"),
        ]  # fmt: skip
    return _wide(words[0]) | shl(_wide(words[1]), 32)
