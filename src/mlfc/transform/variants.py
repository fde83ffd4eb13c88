"""One function for several levels of processors: its parameters are those of all bodies, which the plan takes for one.

Weights that two bodies read in the same order are one constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.support.dims import Dim, maximum
from mlfc.tir.ir import Buffer, PrimFunc
from mlfc.tir.visitor import signature

Constants: TypeAlias = "tuple[npt.NDArray[Any], ...]"
Lowered: TypeAlias = "tuple[PrimFunc, Constants]"
"""A function, and the values of its constants."""


def with_variants(base: Lowered, others: Mapping[str, Lowered]) -> Lowered:
    """Return a function with those that replace it on processors of higher levels, where they differ from it.

    Scratch has as many bytes as the neediest wants, and the output shares memory where all of them allow it.
    """
    prim, constants = base
    different = {level: other for level, other in others.items() if not _is_same(base, other)}
    if not different:
        return base
    union = list(zip(prim.constants, constants, strict=True))
    places = {level: _places(union, other) for level, other in different.items()}
    prims = [prim, *(other for other, _ in different.values())]
    merged = replace(
        prim,
        constants=tuple(buffer for buffer, _ in union),
        scratch=(*prim.scratch, *_more_scratch(prims)),
        inplace=tuple(place for place in prim.inplace if all(place in other.inplace for other in prims)),
        symbols=tuple({symbol: None for other in prims for symbol in other.symbols}),
    )
    variants = []
    for level, (other, _) in different.items():
        own = places[level]
        variant = replace(
            other,
            constants=tuple(own.get(index, buffer) for index, (buffer, _) in enumerate(union)),
            # all have a workspace if one has
            scratch=other.scratch or merged.scratch[:1],
            inplace=merged.inplace,
            symbols=merged.symbols,
        )
        variants.append((level, variant))
    return replace(merged, variants=tuple(variants)), tuple(array for _, array in union)


def _is_same(base: Lowered, other: Lowered) -> bool:
    same = all(map(_is_equal, base[1], other[1])) and len(base[1]) == len(other[1])
    return same and signature(base[0]) == signature(other[0])


def _is_equal(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Tell whether two arrays are the same elements, whatever their shapes: functions have their own."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.size != b.size:
        return False
    first, second = (np.ascontiguousarray(item).reshape(-1).view(np.uint8) for item in (a, b))
    return np.array_equal(first, second)


def _places(union: list[tuple[Buffer, npt.NDArray[Any]]], other: Lowered) -> dict[int, Buffer]:
    """Return a function's constants by their places among those of all, to which missing ones are added."""
    places: dict[int, Buffer] = {}
    for buffer, array in zip(other[0].constants, other[1], strict=True):
        known = (index for index, (_, data) in enumerate(union) if index not in places and _is_equal(data, array))
        place = next(known, len(union))
        if place == len(union):
            union.append((buffer, array))
        places[place] = buffer
    return places


def _more_scratch(prims: list[PrimFunc]) -> tuple[Buffer, ...]:
    """Return a buffer behind the first function's scratch for as many bytes as any of the functions needs more."""
    base = prims[0]
    end = 0 if not base.scratch else base.scratch_offsets[-1] + (base.scratch[-1].nbytes + 63) // 64 * 64
    more = reduce(maximum, (prim.scratch_bytes - end for prim in prims[1:]), 0)
    return () if not isinstance(more, Dim) and more <= 0 else (Buffer("more", (more,), "uint8", "scratch"),)
