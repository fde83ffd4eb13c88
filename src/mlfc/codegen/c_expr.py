"""Printing of loop-level expressions as C, with parentheses where C's precedence or compiler warnings require them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from mlfc.codegen import c_types, vectors
from mlfc.codegen.c_types import GROUP, HALF_FLOATS, helper_name, literal, mask_dtype, part_type, scalar_type
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.dims import Dim, bounds
from mlfc.tir import ir
from mlfc.tir.affine import Affine, ExprTable
from mlfc.tir.bounds import Ranges
from mlfc.tir.extents import as_index, with_names
from mlfc.tir.forms import C_FORMS
from mlfc.tir.intrinsics import INTRINSICS
from mlfc.tir.ir import Expr

# precedence of C: a larger number binds tighter
TERNARY, _LOR, _LAND, _OR, _XOR, _AND = 1, 2, 3, 4, 5, 6
_EQUAL, _LESS, _SHIFT, _ADD, _MUL, _UNARY, ATOM = 7, 8, 9, 10, 11, 12, 13

_OPERATORS = {
    "add": ("+", _ADD), "sub": ("-", _ADD), "mul": ("*", _MUL), "div": ("/", _MUL),
    "and": ("&", _AND), "or": ("|", _OR), "xor": ("^", _XOR), "shl": ("<<", _SHIFT), "shr": (">>", _SHIFT),
    "eq": ("==", _EQUAL), "ne": ("!=", _EQUAL), "lt": ("<", _LESS), "le": ("<=", _LESS),
    "gt": (">", _LESS), "ge": (">=", _LESS), "land": ("&&", _LAND), "lor": ("||", _LOR),
}  # fmt: skip
_ARITHMETIC = frozenset({_ADD, _MUL})
_COMPARING = frozenset({_LESS, _EQUAL})
# not add and mul: 4 * (n / 2) differs from 4 * n / 2, and a + b may overflow where a + (b + c) does not
_ASSOCIATIVE = frozenset({"and", "or", "xor", "land", "lor"})
_PLAIN_UNDER = {
    _ADD: _ARITHMETIC, _MUL: _ARITHMETIC, _LESS: _ARITHMETIC, _EQUAL: _ARITHMETIC,
    _LAND: _ARITHMETIC | _COMPARING, _LOR: _ARITHMETIC | _COMPARING,
}  # fmt: skip
"""Operators that need no parentheses inside other operators, by level: those whose precedence is common knowledge."""

_INT = dtypes.limits("int16")
"""The minimum range of int: C promotes narrower integers to int, which has 16 bits on some machines."""

MATH = frozenset(
    {
        "exp", "log", "log2", "log10", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "floor", "ceil", "trunc", "fabs", "erf", "pow", "fmod",
    }
)  # fmt: skip
MATH_RENAMED = {"round_even": "rint", "round_away": "round"}
CLASSIFY = frozenset({"isnan", "isinf"})
OF_BITS = frozenset({"bits_of_float", "float_of_bits"})


@dataclass(eq=False)
class Requirements:
    """Requirements of printed code on its file: helpers, vector types, headers."""

    helpers: set[str] = field(default_factory=set)
    vectors: set[str] = field(default_factory=set)
    math: bool = False
    independent_loops: bool = False
    scalar_loops: bool = False
    rolled_loops: bool = False
    fences: bool = False
    prefetches: bool = False
    wide_vectors: bool = False
    doubles: bool = False
    rounds_even: bool = False
    parallel: set[str] = field(default_factory=set)  # the functions that distribute pieces over threads

    def merge(self, other: Requirements) -> None:
        """Add the requirements of `other`."""
        for need in fields(self):
            setattr(self, need.name, getattr(self, need.name) | getattr(other, need.name))


@dataclass(eq=False)
class ExprPrinter:
    """Prints the expressions of one function; a vector is printed as its part ``q``."""

    name_of: Callable[[ir.Var | ir.Buffer], str]  # the C name of a variable or buffer
    needs: Requirements  # filled while printing
    ranges: Ranges  # known intervals of variables at the printed expression
    # dynamic dimensions that are bound to variables, with their expressions
    named: Mapping[Dim, tuple[ir.Var, Expr]] = field(default_factory=dict, kw_only=True)
    _table: ExprTable = field(default_factory=ExprTable, init=False)
    _noted: set[str] = field(default_factory=set, init=False)

    def expr(self, expr: Expr, level: int = TERNARY) -> str:
        """Return C for `expr`, parenthesized unless it binds at least as tightly as `level`."""
        text, own = self._print(expr)
        return text if own >= level else f"({text})"

    def _print(self, expr: Expr) -> tuple[str, int]:
        if expr.dtype not in self._noted:
            self._noted.add(expr.dtype)
            self._note_vector(expr.dtype)
            self.needs.doubles = self.needs.doubles or dtypes.element(expr.dtype) == "float64"
        if isinstance(expr, ir.Const):
            self.needs.math = self.needs.math or dtypes.is_float(expr.dtype)
            return literal(expr.value, expr.dtype), ATOM
        if isinstance(expr, ir.Var):
            return self.variable(expr), ATOM
        if isinstance(expr, ir.Load):
            return self._load(expr)
        if isinstance(expr, ir.Binary):
            return self._binary(expr)
        if isinstance(expr, ir.Select):
            return self._select(expr)
        if isinstance(expr, ir.Cast):
            return self._cast(expr)
        if isinstance(expr, ir.Broadcast):
            return self._broadcast(expr)
        return self._call(expr)

    def _note_vector(self, dtype: str) -> None:
        if dtypes.lanes(dtype) > 1 and dtypes.element(dtype) != "bool":
            self.needs.vectors.add(dtype)

    def need(self, key: str) -> str:
        """Return the C name of a helper and require its definition."""
        self.needs.helpers.add(key)
        return helper_name(key)

    def helper(self, key: str, *args: Expr) -> tuple[str, int]:
        """Return a call of a helper and require its definition."""
        return f"{self.need(key)}({', '.join(map(self.expr, args))})", ATOM

    def _own_form(self, expr: Expr) -> tuple[str, int] | None:
        """Return the form of an expression that is specific to an instruction set, if one has any."""
        found = (C_FORMS.get(name).expression(self, expr) for name in C_FORMS)
        return next(((text, ATOM) for text in found if text is not None), None)

    def index(self, buffer: ir.Buffer, indices: tuple[Expr, ...]) -> str:
        """Return the flat element index of `indices` into `buffer`."""
        if bounds(buffer.size)[0] > dtypes.limits("int32")[1]:
            raise InternalError(f"{buffer.name} has {buffer.size} elements, which exceeds the range of int32 indices")
        total, outer = Affine({}, 0), ""
        for extent, index in zip(buffer.shape, indices, strict=True):
            if isinstance(extent, Dim) and (outer or total.terms or total.constant):
                rows = self._indices(outer, total)
                stride = self.expr(with_names(as_index(extent), self.named), _UNARY)
                outer = f"{rows if rows.isidentifier() else f'({rows})'} * {stride}"
                total = Affine({}, 0)
            elif not isinstance(extent, Dim):
                outer = f"{outer} * {extent}" if outer and extent != 1 else outer
                total = total.times(extent)
            total = total.plus(self._table.affine(index))
        return self._indices(outer, total)

    def _indices(self, outer: str, total: Affine) -> str:
        if not outer:
            return self._sum(total)
        if not total.terms and not total.constant:
            return outer
        inner = self._sum(total)
        return f"{outer} - {inner[1:]}" if inner.startswith("-") else f"{outer} + {inner}"

    def _sum(self, total: Affine) -> str:
        # positive terms come first, so that few indices start with a minus
        parts = []
        for number, coefficient in total.terms.items():
            size = abs(coefficient)
            term = self.expr(self._table.exprs[number], _MUL if size == 1 else _UNARY)
            parts.append((coefficient < 0, term if size == 1 else f"{term} * {size}"))
        if total.constant:
            parts.append((total.constant < 0, str(abs(total.constant))))
        parts.sort(key=lambda part: part[0])
        if not parts:
            return "0"
        (negative, text), *rest = parts
        return "".join(
            [f"-({text})" if negative else text, *(f" {'-' if minus else '+'} {part}" for minus, part in rest)]
        )

    def element(self, buffer: ir.Buffer, indices: tuple[Expr, ...], dtype: str) -> str:
        """Return the lvalue at `indices`, which count the buffer's elements; a vector `dtype` starts there."""
        place = f"{self.name_of(buffer)}[{self.index(buffer, indices)}]"
        if dtypes.lanes(dtype) == 1:
            return place
        self._note_vector(dtype)
        parts = place if dtype == buffer.dtype else f"(({c_types.value_type(dtype)}_u *)&{place})"
        return f"{parts}[{vectors.PART}]"

    def address(self, buffer: ir.Buffer, indices: tuple[Expr, ...]) -> str:
        """Return the address of an element."""
        return f"&{self.name_of(buffer)}[{self.index(buffer, indices)}]"

    def variable(self, var: ir.Var) -> str:
        """Return the lvalue of a variable."""
        name = self.name_of(var)
        return name if dtypes.lanes(var.dtype) == 1 else f"{name}[{vectors.PART}]"

    def _load(self, expr: ir.Load) -> tuple[str, int]:
        text = self.element(expr.buffer, expr.indices, expr.dtype)
        return f"((const {text[2:]}" if text.startswith("((") else text, ATOM

    def group(self, expr: Expr) -> str:
        """Return four bytes as an int32."""
        if isinstance(expr, ir.Var):
            return self.name_of(expr)
        if not isinstance(expr, ir.Load):
            raise InternalError("C requires a group of four bytes to be loaded from memory")
        return f"{self.need(GROUP)}({self.address(expr.buffer, expr.indices)})"

    def _binary(self, expr: ir.Binary) -> tuple[str, int]:
        element = dtypes.element(expr.a.dtype)
        if element in HALF_FLOATS:
            return self._half_binary(expr, element)
        if expr.op in ("min", "max"):
            return self.helper(f"{expr.op}:{expr.dtype}", expr.a, expr.b)
        if expr.op in ("floordiv", "floormod", "truncdiv", "truncmod"):
            return self._division(expr)
        if expr.op == "shl" and not expr.dtype.startswith("u") and dtypes.lanes(expr.dtype) == 1:
            # shifting a negative number is undefined, so the bits are shifted as unsigned
            kind = scalar_type(expr.dtype)
            amount = self._operand(expr.b, _SHIFT, _ADD)
            return f"({kind})((u{kind}){self.expr(expr.a, _UNARY)} << {amount})", _UNARY
        if expr.op == "shl" and expr.dtype == "uint32" and isinstance(expr.a, ir.Const):
            # the literal alone may have an int's 16 bits
            return f"UINT32_C({expr.a.value}) << {self._operand(expr.b, _SHIFT, _ADD)}", _SHIFT
        if expr.op == "eq" and isinstance(expr.b, ir.Const) and expr.b.dtype == "bool" and not expr.b.value:
            return f"!{self.expr(expr.a, _UNARY)}", _UNARY
        if self.wraps(expr):
            return self.helper(f"wrap_{expr.op}:{expr.dtype}", expr.a, expr.b)
        promoted = dtypes.is_integer(expr.dtype) and dtypes.bits(expr.dtype) < 32 and dtypes.lanes(expr.dtype) == 1
        if promoted and expr.op in ("add", "sub", "mul") and not self.ranges.result(expr).within(*_INT):
            expr = ir.Binary(expr.op, ir.Cast(expr.a, "uint32"), ir.Cast(expr.b, "uint32"), expr.dtype)
        symbol, level = _OPERATORS[expr.op]
        left, tighter = self._operand(expr.a, level, level), level if expr.op in _ASSOCIATIVE else level + 1
        text = f"{left} {symbol} {self._operand(expr.b, level, tighter)}"
        if promoted and expr.op not in ("and", "or", "xor", "shr"):
            return f"({scalar_type(expr.dtype)})({text})", _UNARY
        return text, level

    def _operand(self, expr: Expr, outer: int, level: int) -> str:
        text, own = self._print(expr)
        plain = own in (outer, _UNARY, ATOM) or own in _PLAIN_UNDER.get(outer, ())
        return text if own >= level and plain else f"({text})"

    def wraps(self, expr: Expr) -> bool:
        """Return whether an expression is signed arithmetic that may overflow, which is undefined behaviour in C."""
        if not isinstance(expr, ir.Binary) or expr.op not in ("add", "sub", "mul"):
            return False
        element = dtypes.element(expr.dtype)
        return element in ("int32", "int64") and not self.ranges.result(expr).within(*dtypes.limits(element))

    def _division(self, expr: ir.Binary) -> tuple[str, int]:
        divisor = self.ranges.interval(expr.b)
        dividend = self.ranges.interval(expr.a)
        rounds_alike = expr.op.startswith("trunc") or (dividend.low >= 0 and divisor.low > 0)
        if rounds_alike and (divisor.low > 0 or divisor.high < -1):
            symbol = "%" if expr.op.endswith("mod") else "/"
            text = f"{self._operand(expr.a, _MUL, _MUL)} {symbol} {self._operand(expr.b, _MUL, _UNARY)}"
            if dtypes.bits(expr.dtype) < 32:
                return f"({scalar_type(expr.dtype)})({text})", _UNARY
            return text, _MUL
        return self.helper(f"{expr.op}:{expr.dtype}", expr.a, expr.b)

    def _half_binary(self, expr: ir.Binary, element: str) -> tuple[str, int]:
        """Compute in float and round once: float has more than twice the digits, so the result is correctly rounded."""
        wide = ir.Binary(
            expr.op, ir.Cast(expr.a, "float32"), ir.Cast(expr.b, "float32"),
            "bool" if expr.op in ir.COMPARISONS else "float32",
        )  # fmt: skip
        return self._print(wide if expr.op in ir.COMPARISONS else ir.Cast(wide, element))

    def _select(self, expr: ir.Select) -> tuple[str, int]:
        if dtypes.lanes(expr.condition.dtype) > 1:
            condition = expr.condition
            if not isinstance(condition, ir.Binary) or mask_dtype(condition.a.dtype) != mask_dtype(expr.dtype):
                raise InternalError("C requires a vector select to compare vectors of the same width")
            return self.helper(f"select:{expr.dtype}", condition, expr.then, expr.otherwise)
        arms = f"{self.expr(expr.then, _LOR)} : {self.expr(expr.otherwise)}"
        return f"{self.expr(expr.condition, _LOR)} ? {arms}", TERNARY

    def _cast(self, expr: ir.Cast) -> tuple[str, int]:
        source, target = expr.value.dtype, dtypes.element(expr.dtype)
        if (found := self._own_form(expr)) is not None:
            return found
        if dtypes.lanes(source) > 1:
            return self.helper(f"convert:{expr.dtype}", expr.value)
        if source in HALF_FLOATS:
            self.needs.helpers.add(f"{source}_to_float")
            text, level = f"mlf_{source}_to_float({self.expr(expr.value)})", ATOM
            if target == "float32":
                return text, level
        else:
            text, level = self._print(expr.value)
        operand = text if level >= _UNARY else f"({text})"
        if target in HALF_FLOATS:
            self.needs.helpers.add(f"{target}_from_float")
            return f"mlf_{target}_from_float({text if source == 'float32' else f'(float){operand}'})", ATOM
        if target == "bool":
            return f"{operand} != 0", _EQUAL
        return f"({scalar_type(target)}){operand}", _UNARY

    def _broadcast(self, expr: ir.Broadcast) -> tuple[str, int]:
        if isinstance(expr.value, ir.Const) and expr.value.value == 0 and not str(expr.value.value).startswith("-"):
            return f"({part_type(expr.dtype)}){{0}}", _UNARY
        return self.helper(f"splat:{expr.dtype}", expr.value)

    def _call(self, expr: ir.Call) -> tuple[str, int]:
        if (found := self._own_form(expr)) is not None:
            return found
        if dtypes.lanes(expr.dtype) > 1:
            raise InternalError(f"C has no '{expr.name}' of vectors")
        if expr.name == "within":
            return self._print(expr.args[0])
        if expr.name == "integer_power":
            return self.helper(f"{expr.name}:{expr.args[0].dtype}", *expr.args)
        if expr.name in OF_BITS:
            return self.helper(expr.name, *expr.args)
        source = expr.args[0].dtype
        if body := INTRINSICS.get(expr.name).body(source):
            return self.helper(body.key, *expr.args)
        if source in HALF_FLOATS:
            wide = tuple(ir.Cast(arg, "float32") for arg in expr.args)
            result = expr.dtype if expr.name in CLASSIFY else "float32"
            call = ir.Call(expr.name, wide, result)
            return self._print(call if expr.name in CLASSIFY else ir.Cast(call, expr.dtype))
        self.needs.math = True
        arguments = ", ".join(map(self.expr, expr.args))
        if expr.name in CLASSIFY:
            return f"{expr.name}({arguments}) != 0", _EQUAL
        self.needs.rounds_even = self.needs.rounds_even or expr.name == "round_even"
        name = MATH_RENAMED.get(expr.name, expr.name)
        if name not in MATH and expr.name not in MATH_RENAMED:
            raise InternalError(f"C has no intrinsic '{expr.name}'")
        return f"{name}{self._math_suffix if source == 'float32' else ''}({arguments})", ATOM

    @property
    def _math_suffix(self) -> str:
        """The suffix of math functions on float."""
        return "f"
