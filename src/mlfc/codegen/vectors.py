"""Vector values in C: how many machine vectors hold one, their types, and macros for operators that GNU C lacks.

The lanes of a vector of the loop-level code are spread over ``MLF_PARTS`` machine vectors, as many as the
compiler's flags call for: compilers lower a vector wider than the machine's registers badly, but keep
arrays of native ones in registers. Each vector statement is one line that ``MLF_EACH(q)`` repeats for every part.
Functions cannot take vectors in portable C (how they are passed depends on the instruction set), so the
operations are macros.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfc.codegen.c_types import mask_dtype, part_type, scalar_type, short_name, value_type
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.target.features import VECTORS

PART = "q"
"""The name that a repeated statement has for the part it works on."""

NARROWEST = 16  # SSE, NEON, VSX

_NAMES = frozenset({"splat", "min", "max", "select"})


def is_key(key: str) -> bool:
    """Tell whether a helper's key is one of this file's."""
    name, _, dtype = key.partition(":")
    return name in _NAMES and bool(dtype) and dtypes.lanes(dtype) > 1


def macro_name(key: str) -> str:
    """Return the C name of the macro `key`, such as ``splat:float32x16``."""
    name, _, dtype = key.partition(":")
    return f"mlf_{name}_{short_name(dtype)}"


def macro(key: str) -> str:
    """Return the definition of the macro `key`; its arguments and its result are parts."""
    name, _, dtype = key.partition(":")
    if name == "splat":
        return _splat(dtype)
    part, mask = part_type(dtype), part_type(mask_dtype(dtype))
    if name == "select":
        params, chosen = "mask, a, b", f"const {mask} mlf_mask = (mask);"
    elif name in ("min", "max"):
        params, chosen = "a, b", f"const {mask} mlf_mask = ({mask})(mlf_a {'<' if name == 'min' else '>'} mlf_b);"
    else:
        raise InternalError(f"C has no helper {key}")
    return " \\\n".join(
        [
            f"#define {macro_name(key)}({params}) __extension__({{",
            f"  const {part} mlf_a = (a), mlf_b = (b);",
            f"  {chosen}",
            f"  ({part})((({mask})mlf_a & mlf_mask) | (({mask})mlf_b & ~mlf_mask)); }})",
        ]
    )


def _splat(dtype: str) -> str:
    """Return the macro that puts a scalar in every lane: x - 0 is x for every x, minus zero included."""
    name, part, scalar = macro_name(f"splat:{dtype}"), part_type(dtype), scalar_type(dtype)
    plain = f"#define {name}(x) (({scalar})(x) - ({part}){{0}})"
    if not dtypes.is_float(dtype):
        return plain
    mask = mask_dtype(dtype)
    by_bits = " \\\n".join(
        [
            f"#define {name}(x) __extension__({{",
            f"  const {scalar} mlf_x = (x);",
            f"  {scalar_type(mask)} mlf_bits;",
            "  memcpy(&mlf_bits, &mlf_x, sizeof mlf_bits);",
            f"  ({part})(mlf_bits - ({part_type(mask)}){{0}}); }})",
        ]
    )
    # where floats are computed as long doubles (x87), GNU C refuses a float beside a vector of floats
    excess = "#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0"
    return "\n".join([excess, by_bits, "#else", plain, "#endif"])


def dtypes_of(key: str) -> set[str]:
    """Return the vector dtypes that the macro `key` needs."""
    dtype = key.partition(":")[2]
    return {dtype, mask_dtype(dtype)}


def declarations(vectors: Iterable[str]) -> list[str]:
    """Return the declarations of the vector types `vectors`.

    The widest of them decides how many parts there are; the others of the file have as many.
    """
    kinds = sorted(set(vectors), key=lambda item: (dtypes.element(item), dtypes.lanes(item)))
    if not kinds:
        return []
    lines = [*_parts(widest(kinds)), ""]
    for dtype in kinds:
        lines += _typedefs(dtype)
    return lines


def widest(vectors: Iterable[str]) -> int:
    """Return the bytes of the widest vector."""
    return max(map(dtypes.nbytes, vectors))


def _parts(size: int) -> list[str]:
    """Return the macros for the number of parts of a vector."""
    known = {(width.nbytes, width.condition) for name in VECTORS for width in VECTORS.get(name).widths}
    wider = sorted((pair for pair in known if pair[1] and pair[0] <= size), reverse=True)
    counts = [(condition, size // nbytes) for nbytes, condition in wider]
    lines = [
        f"/* a vector of {size} bytes is MLF_PARTS machine vectors; MLF_EACH(q) repeats a statement for each part q */"
    ]
    if size <= NARROWEST:
        lines.append("#define MLF_PARTS 1")
    else:
        for index, (condition, count) in enumerate(counts):
            lines += [f"#{'elif' if index else 'if'} {condition}", f"#define MLF_PARTS {count}"]
        lines += ["#else", f"#define MLF_PARTS {size // NARROWEST}", "#endif"]
    return [*lines, "#define MLF_EACH(q) for (int32_t q = 0; q < MLF_PARTS; ++q)"]


def _typedefs(dtype: str) -> list[str]:
    """Return the types of a vector, of a part of it, and of an unaligned part among scalars."""
    whole, part, scalar, size = value_type(dtype), part_type(dtype), scalar_type(dtype), dtypes.nbytes(dtype)
    align = dtypes.nbytes(dtypes.element(dtype))
    width = f"vector_size({size} / MLF_PARTS)"
    return [
        f"typedef {scalar} {part} __attribute__(({width}));",
        f"typedef {scalar} {whole}_u __attribute__(({width}, aligned({align}), may_alias));",
        f"typedef {part} {whole}[MLF_PARTS];",
    ]
