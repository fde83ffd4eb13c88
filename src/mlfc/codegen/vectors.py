"""Vector values in C: the number of machine vectors of each, their types, and macros for operators that GNU C lacks.

Compilers lower vectors that are wider than the machine's registers badly, but keep arrays of native vectors in
registers. So the lanes are split into ``MLF_PARTS`` machine vectors, and ``MLF_EACH(q)`` repeats each statement for
every part. Operations are macros because the convention for passing vectors depends on the instruction set. Without GNU
C vectors, every lane is a part.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfc.codegen.c_types import helper_name, mask_dtype, part_type, scalar_type, value_type
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.target.features import VECTORS
from mlfc.tir import ir
from mlfc.tir.ir import Expr

PART = "q"
"""The name of the current part's index in a repeated statement."""

NARROWEST = 16  # SSE, NEON, VSX

_REFUSAL = '#error "expected a compiler with GNU C vectors, such as gcc or clang"'

BYTES = "mlf_bytes"
"""The type of four bytes that are one lane's operand of a sum of products, if lanes are scalars."""

_WRAPPING = {"wrap_add": "+", "wrap_sub": "-", "wrap_mul": "*"}
_NAMES = frozenset({"splat", "min", "max", "select", "convert", *_WRAPPING})

GNU = """/* 0 for compilers without GNU C's vectors, for which each lane of a vector is a scalar */
#if defined(__GNUC__) && !defined(__TINYC__) && !defined(__PCC__)
#define MLF_VECTORS 1
#else
#define MLF_VECTORS 0
#endif"""


def is_key(key: str) -> bool:
    """Return whether a helper's key is one of this file's."""
    name, _, dtype = key.partition(":")
    return name in _NAMES and bool(dtype) and dtypes.lanes(dtype) > 1


def macro(key: str) -> str:
    """Return the definition of the macro `key` for vectors and for scalars; its arguments and its result are parts."""
    return f"#if MLF_VECTORS\n{_of_vectors(key)}\n#else\n{_of_scalars(key)}\n#endif"


def _of_scalars(key: str) -> str:
    """Return the macro or function `key` for parts of one lane."""
    name, _, dtype = key.partition(":")
    title, part = helper_name(key), part_type(dtype)
    if name in ("splat", "convert"):
        return f"#define {title}(x) (({part})(x))"
    if name == "select":
        return f"#define {title}(mask, a, b) ((mask) ? (a) : (b))"
    if name in _WRAPPING:
        unsigned = scalar_type(f"u{dtype}")
        value = f"({part})(({unsigned})a {_WRAPPING[name]} ({unsigned})b)"
    else:
        value = f"a {'<' if name == 'min' else '>'} b ? a : b"
    return f"static inline {part} {title}({part} a, {part} b) {{\n  return {value};\n}}"


def _of_vectors(key: str) -> str:
    """Return the macro `key` for parts that are GNU C vectors."""
    name, _, dtype = key.partition(":")
    if name == "splat":
        return _splat(dtype)
    part, mask = part_type(dtype), part_type(mask_dtype(dtype))
    if name == "convert":
        return f"#define {helper_name(key)}(x) __builtin_convertvector(x, {part})"
    if name in _WRAPPING:
        return f"#define {helper_name(key)}(a, b) ((a) {_WRAPPING[name]} (b))"
    if name == "select":
        params, chosen = "mask, a, b", f"const {mask} mlf_mask = (mask);"
    elif name in ("min", "max"):
        params, chosen = "a, b", f"const {mask} mlf_mask = ({mask})(mlf_a {'<' if name == 'min' else '>'} mlf_b);"
    else:
        raise InternalError(f"C has no helper {key}")
    return " \\\n".join(
        [
            f"#define {helper_name(key)}({params}) __extension__({{",
            f"  const {part} mlf_a = (a), mlf_b = (b);",
            f"  {chosen}",
            f"  ({part})((({mask})mlf_a & mlf_mask) | (({mask})mlf_b & ~mlf_mask)); }})",
        ]
    )


def _splat(dtype: str) -> str:
    """Return the macro that broadcasts a scalar to all lanes: x - 0 equals x for every x, including minus zero."""
    name, part, scalar = helper_name(f"splat:{dtype}"), part_type(dtype), scalar_type(dtype)
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
    # with excess precision (x87), GNU C rejects a float as the operand of a float vector
    excess = "#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0"
    return "\n".join([excess, by_bits, "#else", plain, "#endif"])


def declarations(vectors: Iterable[str], *, is_portable: bool = True) -> list[str]:
    """Return the declarations of the vector types `vectors`.

    The widest one determines the number of parts of all vectors of the file. If the helpers are not portable, or the
    vectors have different numbers of lanes, compilers without GNU C vectors report an error.
    """
    kinds = sorted(set(vectors), key=lambda item: (dtypes.element(item), dtypes.lanes(item)))
    if not kinds:
        return []
    least = min(map(dtypes.lanes, kinds))
    plain = [_scalar_typedefs(dtype, least) for dtype in kinds] if is_portable else []
    if not all(plain):
        plain = []
    lines = [*_parts(widest(kinds), least if plain else 0), "", *(["#if MLF_VECTORS"] if plain else [])]
    for dtype in kinds:  # a part of a vector, and an unaligned part among scalars
        typedef, width = f"typedef {scalar_type(dtype)}", f"vector_size({dtypes.nbytes(dtype)} / MLF_PARTS)"
        align = dtypes.nbytes(dtypes.element(dtype))
        lines += [
            f"{typedef} {part_type(dtype)} __attribute__(({width}));",
            f"{typedef} {value_type(dtype)}_u __attribute__(({width}, aligned({align}), may_alias));",
        ]
    # some compilers ignore the attribute
    check = f"sizeof({part_type(kinds[0])}) == {dtypes.nbytes(kinds[0])} / MLF_PARTS ? 1 : -1"
    lines.append(f"typedef char mlf_has_vectors[{check}];")
    if plain:
        bytes_used = any(BYTES in line for pair in plain for line in pair)
        group = [f"typedef struct {{ uint8_t byte[4]; }} {BYTES};"] if bytes_used else []
        lines += ["#else", *group, *(line for pair in plain for line in pair), "#endif"]
    return [*lines, *(f"typedef {part_type(dtype)} {value_type(dtype)}[MLF_PARTS];" for dtype in kinds)]


def widest(vectors: Iterable[str]) -> int:
    """Return the size of the widest vector in bytes."""
    return max(map(dtypes.nbytes, vectors))


def _parts(size: int, lanes: int) -> list[str]:
    """Return the macros for the number of parts of a vector; unless `lanes` is 0, they are `lanes` scalars."""
    known = {(width.nbytes, width.condition) for name in VECTORS for width in VECTORS.get(name).widths}
    wider = sorted((pair for pair in known if pair[1] and pair[0] <= size), reverse=True)
    counts = [(condition, size // nbytes) for nbytes, condition in wider]
    lines = [
        f"/* a vector of {size} bytes is MLF_PARTS machine vectors; MLF_EACH(q) repeats a statement for each part q */",
        "#if !MLF_VECTORS",
        f"#define MLF_PARTS {lanes}" if lanes else _REFUSAL,
    ]
    for condition, count in counts if size > NARROWEST else []:
        lines += [f"#elif {condition}", f"#define MLF_PARTS {count}"]
    lines += ["#else", f"#define MLF_PARTS {max(size // NARROWEST, 1)}", "#endif"]
    # unrolling loops of one iteration would take gcc a fifth of its time
    once = ["#if MLF_PARTS == 1", f"enum {{ {PART} }};", f"#define MLF_EACH({PART})"]
    loop = f"#define MLF_EACH({PART}) for (int32_t {PART} = 0; {PART} < MLF_PARTS; ++{PART})"
    return [*lines, *once, "#else", loop, "#endif"]


def _scalar_typedefs(dtype: str, lanes: int) -> list[str]:
    """Return the types of a part that is one of `lanes` scalars or four bytes; empty for other parts."""
    if dtypes.lanes(dtype) == lanes:
        kind = scalar_type(dtype)
    elif dtypes.lanes(dtype) == 4 * lanes and dtypes.nbytes(dtypes.element(dtype)) == 1:
        kind = BYTES
    else:
        return []
    return [f"typedef {kind} {part_type(dtype)};", f"typedef {kind} {value_type(dtype)}_u;"]


NARROW = ("int8", "uint8", "int16", "uint16")


def widened(expr: ir.Cast, lanes: str) -> ir.Load | None:
    """Return the load of narrow elements that a cast widens to int32; None for another cast."""
    load = expr.value
    known = expr.dtype == lanes and isinstance(load, ir.Load) and dtypes.element(load.dtype) in NARROW
    return load if known and isinstance(load, ir.Load) else None


def narrowed(value: Expr, lanes: str) -> tuple[str, Expr] | None:
    """Return the helper and the int32 value with which a store writes narrow elements; None for another store."""
    if not isinstance(value, ir.Cast) or value.value.dtype != lanes or dtypes.element(value.dtype) not in NARROW:
        return None
    least, most = dtypes.limits("int8")
    # the operand of the upper limit, and of any lower limit
    inner = _operand(value.value, "min", most, most) if dtypes.element(value.dtype) == "int8" else None
    if inner is None or _operand(inner, "max", least, most) is None:
        return f"narrow:{value.dtype}", value.value
    return f"saturate:{value.dtype}", _operand(inner, "max", least, least) or inner


def _operand(value: Expr, op: str, least: int, most: int) -> Expr | None:
    """Return the operand that is compared with a literal from `least` to `most`; None for another expression."""
    if not isinstance(value, ir.Binary) or value.op != op or not isinstance(value.b, ir.Broadcast):
        return None
    number = value.b.value
    return value.a if isinstance(number, ir.Const) and least <= number.value <= most else None
