"""The C of what ARM's vector extension for microcontrollers (MVE, Helium) has instructions for.

Every helper has the form that the machine runs, chosen by ``__ARM_FEATURE_MVE``, and a portable one beside it that
computes the same. Block intrinsics (`tir.block_intrinsics`) are printed as statements that take addresses; vectors of
four int32 are values.
"""

from __future__ import annotations

from mlfc.codegen import vectors
from mlfc.codegen.c_types import scalar_type, short_name
from mlfc.errors import InternalError
from mlfc.isa.mve.c_block_intrinsics import BLOCK_HELPERS, BLOCK_INTRINSICS
from mlfc.support import dtypes
from mlfc.tir import block_intrinsics, ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper
from mlfc.tir.ir import Expr

_LANES = "int32x4"  # the one vector of values

_INCLUDES = (
    "#if defined(__ARM_FEATURE_MVE)",
    "#include <arm_mve.h>",
    "#if defined(__clang__)",
    "/* what only the portable forms call */",
    '#pragma clang diagnostic ignored "-Wunused-function"',
    "#endif",
    "#endif",
)

_PART = "mlf_i32x4_part"
_IF = "#if defined(__ARM_FEATURE_MVE) && MLF_PARTS == 1"
_COUNT = "4 / MLF_PARTS"
_SATURATED = "(mlf_value[mlf_i] < -128 ? -128 : mlf_value[mlf_i] > 127 ? 127 : mlf_value[mlf_i])"
_EACH = f"for (int32_t mlf_i = 0; mlf_i < {_COUNT}; ++mlf_i)"
_NARROW = {"int8": ("b", "s"), "uint8": ("b", "u"), "int16": ("h", "s"), "uint16": ("h", "u")}
"""The letters of the instructions that widen and narrow an element in memory, and of the sign of a lane."""

_CALLS = {
    "min": (2, (), "vminq_s32(mlf_a, mlf_b)", "mlf_a[mlf_i] < mlf_b[mlf_i] ? mlf_a[mlf_i] : mlf_b[mlf_i]"),
    "max": (2, (), "vmaxq_s32(mlf_a, mlf_b)", "mlf_a[mlf_i] > mlf_b[mlf_i] ? mlf_a[mlf_i] : mlf_b[mlf_i]"),
    "requantize_down": (
        3, ("const int32x4_t mlf_h = vqrdmulhq_s32(mlf_a, mlf_b);",),
        # the instruction rounds ties up: one less below zero makes that away from zero
        "vrshlq_s32(vaddq_s32(mlf_h, vshrq_n_s32(mlf_h, 31)), vmvnq_s32(mlf_c))",
        "mlf_requantize_down(mlf_a[mlf_i], mlf_b[mlf_i], mlf_c[mlf_i])",
    ),
    "requantize_double": (
        3,
        (
            "const int32x4_t mlf_zero = vdupq_n_s32(0), mlf_right = vminq_s32(mlf_c, mlf_zero);",
            "const int32x4_t mlf_h = vqrdmulhq_s32(vshlq_s32(mlf_a, vmaxq_s32(mlf_c, mlf_zero)), mlf_b);",
        ),
        "vrshlq_s32(vaddq_s32(mlf_h, vshrq_n_s32(vandq_s32(mlf_h, mlf_right), 31)), mlf_right)",
        "mlf_requantize_double(mlf_a[mlf_i], mlf_b[mlf_i], mlf_c[mlf_i])",
    ),
    "requantize_single_down": (
        3, (), "vrshlq_s32(vmulhq_s32(mlf_a, mlf_b), vmvnq_s32(mlf_c))",
        "mlf_requantize_single(mlf_a[mlf_i], mlf_b[mlf_i], -2 - mlf_c[mlf_i])",
    ),
    "requantize_away_down": (
        3,
        (
            "const int32x4_t mlf_high = vmulhq_s32(mlf_a, mlf_b), mlf_one = vdupq_n_s32(1);",
            # below zero ties go down: one less in the high half where the low is zero (gcc 12 fails on predicates here)
            "const uint32x4_t mlf_low = vminq_u32((uint32x4_t)vmulq_s32(mlf_a, mlf_b), (uint32x4_t)mlf_one);",
            "const int32x4_t mlf_less = vandq_s32(vshrq_n_s32(mlf_high, 31), vsubq_s32((int32x4_t)mlf_low, mlf_one));",
        ),
        "vrshlq_s32(vaddq_s32(mlf_high, mlf_less), vmvnq_s32(mlf_c))",
        "mlf_requantize_away(mlf_a[mlf_i], mlf_b[mlf_i], -2 - mlf_c[mlf_i])",
    ),
}  # fmt: skip
_SCALAR = {"requantize_single_down": "requantize_single", "requantize_away_down": "requantize_away"}

_MEMORY = frozenset({"widen", "narrow", "saturate"})


def _helper(key: str) -> Helper | None:
    if key in BLOCK_HELPERS:
        return BLOCK_HELPERS[key]
    name, _, dtype = key.partition(":")
    if name in _MEMORY:
        return (), _memory(name, dtype)
    if name not in _CALLS or dtype != _LANES:
        return None
    scalar = _SCALAR.get(name, name)
    return (() if name in ("min", "max") else (scalar,)), _lanes(name)


def _memory(name: str, dtype: str) -> str:
    """Return the macro that reads or writes four narrow elements as four int32."""
    width, sign = _NARROW[dtypes.element(dtype)]
    macro, kind = f"mlf_{name}_{short_name(dtype)}", scalar_type(dtype)
    lanes = "int32x4_t" if sign == "s" else "uint32x4_t"
    moved = f"{vectors.PART} * ({_COUNT})"
    if name == "widen":
        machine = f"#define {macro}(place) (({_PART})vldr{width}q_{sign}32(place))"
        lines = [
            f"const {kind} *mlf_from = (place) + {moved};",
            f"{_PART} mlf_r;",
            f"{_EACH} {{ mlf_r[mlf_i] = mlf_from[mlf_i]; }}",
        ]
        portable = _macro(f"{macro}(place)", lines, "mlf_r;")
    else:
        machine = f"#define {macro}(place, value) vstr{width}q_{sign}32(place, ({lanes})(value))"
        portable = _statement(
            f"{macro}(place, value)",
            [
                f"{kind} *mlf_to = (place) + {moved};",
                f"const {_PART} mlf_value = (value);",
                f"{_EACH} {{ mlf_to[mlf_i] = ({kind}){_SATURATED if name == 'saturate' else 'mlf_value[mlf_i]'}; }}",
            ],
        )
    if name == "saturate":  # without constants, and in place, which the compilers' functions for it are not
        machine = _statement(
            f"{macro}(place, value)",
            [
                "int32x4_t mlf_value = (int32x4_t)(value);",
                '__asm__("vqmovnb.s32 %q0, %q0\\n\\tvqmovnb.s16 %q0, %q0" : "+w"(mlf_value));',
                "vstrbq_s32(place, mlf_value);",
            ],
        )
    return f"{_IF}\n{machine}\n#else\n{portable}\n#endif"


def _lanes(name: str) -> str:
    """Return the macro that computes on vectors of four int32."""
    count, before, machine, portable = _CALLS[name]
    params = "abc"[:count]
    head = f"mlf_{name}_{short_name(_LANES)}({', '.join(params)})"

    def operands(kind: str) -> list[str]:
        return [f"const {kind} mlf_{letter} = ({kind})({letter});" for letter in params]

    by_lane = [*operands(_PART), f"{_PART} mlf_r;", f"{_EACH} {{ mlf_r[mlf_i] = {portable}; }}"]
    return "\n".join(
        [
            _IF,
            _macro(head, [*operands("int32x4_t"), *before], f"({_PART}){machine};"),
            "#else",
            _macro(head, by_lane, "mlf_r;"),
            "#endif",
        ]
    )


def _macro(head: str, lines: list[str], value: str) -> str:
    return " \\\n".join([f"#define {head} __extension__({{", *(f"  {line}" for line in lines), f"  {value} }})"])


def _statement(head: str, lines: list[str]) -> str:
    return " \\\n".join([f"#define {head} do {{", *(f"  {line}" for line in lines), "} while (0)"])


def _widened(expr: ir.Cast) -> ir.Load | None:
    """Return the narrow elements that a cast takes from memory as four int32, or None where it does not."""
    load = expr.value
    known = expr.dtype == _LANES and isinstance(load, ir.Load) and dtypes.element(load.dtype) in _NARROW
    return load if known and isinstance(load, ir.Load) else None


def _narrowed(value: Expr) -> tuple[str, Expr] | None:
    """Return the helper and the four int32 with which a store writes narrow elements, or None where it does not."""
    if not isinstance(value, ir.Cast) or value.value.dtype != _LANES or dtypes.element(value.dtype) not in _NARROW:
        return None
    unlimited = _limited(value.value, dtypes.limits("int8")) if dtypes.element(value.dtype) == "int8" else None
    return (f"narrow:{value.dtype}", value.value) if unlimited is None else (f"saturate:{value.dtype}", unlimited)


def _limited(value: Expr, limits: tuple[int, int]) -> Expr | None:
    """Return what is limited to `limits` to give `value`, or None where that is not all that is done."""
    for op, limit in zip(("min", "max"), reversed(limits), strict=True):
        if not isinstance(value, ir.Binary) or value.op != op or not isinstance(value.b, ir.Broadcast):
            return None
        if not isinstance(value.b.value, ir.Const) or value.b.value.value != limit:
            return None
        value = value.a
    return value


def _block_call(value: Expr) -> ir.Call | None:
    """Return the call that computes a run, or None where the value is something else."""
    known = isinstance(value, ir.Call) and (
        value.name in block_intrinsics.NAMES
        or value.name == block_intrinsics.COUNTED_FILL
        or block_intrinsics.uncounted(value.name) is not None
    )
    return value if known and isinstance(value, ir.Call) else None


def _block_statement(printer: CPrinter, to: str, call: ir.Call) -> str:
    """Return the statement that stores a run at the address `to`."""
    if call.name == block_intrinsics.COUNTED_FILL:
        key, args = "fill_run", list(map(printer.expr, call.args))
    elif call.name == "run" and isinstance(call.args[0], ir.Broadcast):
        key, args = "fill_run", [printer.expr(call.args[0].value), str(dtypes.lanes(call.dtype))]
    else:
        name = block_intrinsics.uncounted(call.name)
        operands = call.args[: len(call.args) - len(block_intrinsics.COUNTS[name])] if name else call.args
        loads = [arg for arg in operands if isinstance(arg, ir.Load)]
        if len(loads) != len(operands):
            raise InternalError(f"C takes the runs of '{call.name}' from memory only")
        if name:
            numbers = list(map(printer.expr, call.args[len(operands) :]))
        else:
            numbers = list(map(str, block_intrinsics.counts(call.name, [dtypes.lanes(load.dtype) for load in loads])))
        addresses = [printer.address(load.buffer, load.indices) for load in loads]
        key, args = BLOCK_INTRINSICS[name or call.name], [*addresses, *numbers]
    return f"{printer.need(key)}({', '.join([to, *args])});"


def _expression(printer: CPrinter, expr: Expr) -> str | None:
    if isinstance(expr, ir.Call) and expr.dtype == _LANES and expr.name in _CALLS:
        return f"{printer.need(f'{expr.name}:{expr.dtype}')}({', '.join(map(printer.expr, expr.args))})"
    load = _widened(expr) if isinstance(expr, ir.Cast) else None
    if load is None:
        return None
    return f"{printer.need(f'widen:{load.dtype}')}({printer.address(load.buffer, load.indices)})"


def _store(printer: CPrinter, stmt: ir.Store) -> str | None:
    """Return the statement that stores a run, or four narrow elements."""
    call, narrow = _block_call(stmt.value), _narrowed(stmt.value)
    if call is None and narrow is None:
        return None
    to = printer.address(stmt.buffer, stmt.indices)
    if call is not None:
        return _block_statement(printer, to, call)
    assert narrow is not None
    key, wide = narrow
    return f"MLF_EACH(q) {printer.need(key)}({to}, {printer.expr(wide)});"


C_FORMS.add(
    "mve",
    CForm(
        _helper,
        _INCLUDES,
        lambda key: set() if key in BLOCK_HELPERS else {_LANES},
        expression=_expression,
        store=_store,
    ),
)
