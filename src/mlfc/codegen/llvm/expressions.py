"""Emission of loop-level expressions as LLVM IR: each value is bit-identical to the C printer's expression."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import llvmlite.ir as ll

from mlfc.codegen.c_types import HALF_FLOATS
from mlfc.codegen.llvm.context import (
    FLOAT,
    INT1,
    INT16,
    INT32,
    FunctionContext,
    Value,
    alignment,
    constant,
    is_signed,
    lanes_of,
    memory_type,
    resized,
    value_type,
)
from mlfc.codegen.llvm.strength_reduction import AddressTerms, ReducedAddress, address_of, flat_index
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.dims import bounds, is_static
from mlfc.tir import ir
from mlfc.tir.affine import Affine, ExprTable
from mlfc.tir.bounds import Interval
from mlfc.tir.extents import as_index
from mlfc.tir.forms import LLVM_FORMS
from mlfc.tir.intrinsics import INTRINSICS, IntrinsicBody
from mlfc.tir.ir import Expr
from mlfc.tir.visitor import inside_lets, nodes, own_nodes, walk_expr

_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_DIVISIONS = frozenset({"floordiv", "floormod", "truncdiv", "truncmod"})
_SPECULATED = 24  # Maximum number of nodes in an arm of a select that is computed speculatively.


class ExprEmitter:
    """Writes the instructions of expressions at the context's builder."""

    def __init__(self, context: FunctionContext) -> None:
        self._context = context
        self.reduced: list[ReducedAddress] = []
        """The addresses that the innermost loop increments."""
        self._in_body = False
        self._products: dict[int, list[Value]] = {}  # the factors of variables that are bound to products

    def value(self, expr: Expr) -> Value:
        """Return the value of an expression."""
        if isinstance(expr, ir.Const):
            return constant(expr.value, expr.dtype)
        if isinstance(expr, ir.Var):
            return self._context.variables[id(expr)]
        if isinstance(expr, ir.Load):
            return self._load(expr)
        if isinstance(expr, ir.Binary):
            return self._binary(expr)
        if isinstance(expr, ir.Select):
            return self._select(expr)
        if isinstance(expr, ir.Cast):
            return self._cast(expr)
        if isinstance(expr, ir.Broadcast):
            return self._context.splat(self.value(expr.value), dtypes.lanes(expr.dtype))
        return self._call(expr)

    def _cast(self, expr: ir.Cast) -> Value:
        value, source, target = self.value(expr.value), expr.value.dtype, expr.dtype
        if source == target:
            return value
        single = dtypes.vector("float32", dtypes.lanes(target))
        if (before := dtypes.element(source)) in HALF_FLOATS:
            value, source = self._converted(f"{before}_to_float", value, source), single
        if (after := dtypes.element(target)) in HALF_FLOATS:
            value = convert(self._context, value, source, single)
            return self._converted(f"{after}_from_float", value, target)
        return convert(self._context, value, source, target)

    def _converted(self, name: str, value: Value, dtype: str) -> Value:
        context, lanes = self._context, dtypes.lanes(dtype)
        if name.startswith("float16") and context.machine.converts_halves:
            halves = lanes_of(ll.HalfType(), lanes)
            if name == "float16_to_float":
                return context.builder.fpext(context.builder.bitcast(value, halves), lanes_of(FLOAT, lanes))
            return context.builder.bitcast(context.builder.fptrunc(value, halves), lanes_of(INT16, lanes))
        body = INTRINSICS.get(name).bodies[""]
        return self._inlined(body.on_lanes(dtypes.lanes(dtype)), [value])

    def index(self, buffer: ir.Buffer, indices: tuple[Expr, ...]) -> Value:
        """Return the flat element index, an int32 that does not overflow."""
        if bounds(buffer.size)[0] > dtypes.limits("int32")[1]:
            raise InternalError(f"{buffer.name} has {buffer.size} elements, which exceeds the range of int32 indices")
        if is_static(buffer.shape):
            return self._summed(*flat_index(buffer, indices))
        builder, found = self._context.builder, ll.Constant(INT32, 0)
        for extent, index in zip(buffer.shape, indices, strict=True):
            if not _is_zero(found) and extent != 1:
                size = self.value(as_index(extent))
                found = builder.mul(found, size, flags=["nsw"])
            found = self.value(index) if _is_zero(found) else builder.add(found, self.value(index), flags=["nsw"])
        return found

    def _summed(self, table: ExprTable, total: Affine) -> Value:
        builder = self._context.builder
        # positive terms come first: then partial sums are out of bounds by at most as much as the whole sum
        terms = sorted(total.terms.items(), key=lambda term: term[1] < 0)
        found = None
        for number, coefficient in terms:
            term = self.value(table.exprs[number])
            if coefficient != 1:
                term = builder.mul(term, ll.Constant(INT32, coefficient), flags=["nsw"])
            found = term if found is None else builder.add(found, term, flags=["nsw"])
        if found is None:
            return ll.Constant(INT32, total.constant)
        return builder.add(found, ll.Constant(INT32, total.constant), flags=["nsw"]) if total.constant else found

    def address(self, load: ir.Load) -> Value:
        """Return the address of a load."""
        return self.place(load.buffer, load.indices)

    def place(self, buffer: ir.Buffer, indices: tuple[Expr, ...]) -> Value:
        """Return the address of an element of `buffer`."""
        found = address_of(buffer, indices) if self.reduced else None
        for reduced in self.reduced if found else ():
            if found and reduced.place.same(found[0]):
                return reduced.at(self._context, reduced.address, found[1])
        return self._context.address(buffer, self.index(buffer, indices))

    def start_of(self, place: AddressTerms, without: ir.Var) -> Value:
        """Return the address `place` with the variable `without` set to 0."""
        terms: Expr = ir.Const(0)
        for var, coefficient in place.terms.items():
            if var is not without:
                terms = terms + var * coefficient
        table = ExprTable()
        return self._context.address(place.buffer, self._summed(table, table.affine(terms)))

    def _load(self, expr: ir.Load) -> Value:
        context, kind = self._context, memory_type(expr.dtype)
        value = context.builder.load(self.address(expr), typ=kind, align=alignment(expr.buffer, expr.dtype))
        context.access(value, expr.buffer)
        if dtypes.element(expr.dtype) == "bool":
            return context.builder.icmp_unsigned("!=", value, context.number(0, value))
        return value

    def _binary(self, expr: ir.Binary) -> Value:
        if dtypes.element(expr.a.dtype) in HALF_FLOATS:
            return self._half_binary(expr)
        if expr.op in ("land", "lor"):
            return self._lazy_logic(expr)
        if dtypes.is_float(expr.a.dtype) and expr.op in ("add", "sub"):
            return self._sum(expr)
        if expr.op in ("shl", "shr"):
            return self._shift(expr)
        a, b = self.value(expr.a), self.value(expr.b)
        if expr.op in ("min", "max"):
            chosen = self._compared("lt" if expr.op == "min" else "gt", a, b, expr.dtype)
            return self._context.builder.select(chosen, a, b)
        if expr.op in _COMPARE:
            return self._compared(expr.op, a, b, expr.a.dtype)
        if expr.op in _DIVISIONS:
            known = self._context.ranges
            return divide(self._context, expr, a, b, known.interval(expr.a), known.interval(expr.b))
        return self._arithmetic(expr, a, b)

    def _compared(self, op: str, a: Value, b: Value, dtype: str) -> Value:
        builder, symbol = self._context.builder, _COMPARE[op]
        if dtypes.is_float(dtype):
            compare = builder.fcmp_unordered if op == "ne" else builder.fcmp_ordered
            return compare(symbol, a, b)
        return builder.icmp_signed(symbol, a, b) if is_signed(dtype) else builder.icmp_unsigned(symbol, a, b)

    def _arithmetic(self, expr: ir.Binary, a: Value, b: Value) -> Value:
        builder = self._context.builder
        if dtypes.is_float(expr.dtype):
            return {"mul": builder.fmul, "div": builder.fdiv}[expr.op](a, b)
        if expr.op in ("and", "or", "xor"):
            return {"and": builder.and_, "or": builder.or_, "xor": builder.xor}[expr.op](a, b)
        is_known = expr.dtype == "int32" and not self._in_body
        flags = ["nsw"] if is_known and self._context.ranges.result(expr).within(*dtypes.limits("int32")) else []
        return {"add": builder.add, "sub": builder.sub, "mul": builder.mul}[expr.op](a, b, flags=flags)

    def bind(self, let: ir.Let) -> None:
        """Set the variable of a binding.

        C compilers also fuse a product with sums of other statements in its block, if it has no other uses.
        """
        value = let.value
        if isinstance(value, ir.Binary) and self._is_product(value) and _is_only_added(let):
            self._products[id(let.var)] = [self.value(value.a), self.value(value.b)]
            self._context.variables[id(let.var)] = self._context.builder.fmul(*self._products[id(let.var)])
        else:
            self._context.variables[id(let.var)] = self.value(value)

    def _sum(self, expr: ir.Binary) -> Value:
        """Return a sum or difference of floats, fused with a product wherever C compilers fuse them."""
        context, builder = self._context, self._context.builder
        minus = expr.op == "sub"
        if context.contracts and context.machine.fuses(expr.dtype):
            if self._is_product(expr.a):
                x, y = self._factors(expr.a)
                other = self.value(expr.b)
                return context.intrinsic("fma", [x, y, builder.fneg(other) if minus else other])
            if self._is_product(expr.b):
                other = self.value(expr.a)
                x, y = self._factors(expr.b)
                return context.intrinsic("fma", [builder.fneg(x) if minus else x, y, other])
        a, b = self.value(expr.a), self.value(expr.b)
        return builder.fsub(a, b) if minus else builder.fadd(a, b)

    def _is_product(self, expr: Expr) -> bool:
        is_product = isinstance(expr, ir.Binary) and expr.op == "mul" and self._context.machine.fuses(expr.dtype)
        return is_product or id(expr) in self._products

    def _factors(self, product: Expr) -> list[Value]:
        if isinstance(product, ir.Binary):
            return [self.value(product.a), self.value(product.b)]
        return self._products[id(product)]

    def _shift(self, expr: ir.Binary) -> Value:
        """Shift with C's semantics: narrow integers are promoted first, so amounts up to 31 are valid."""
        context, builder = self._context, self._context.builder
        lanes, narrow = dtypes.lanes(expr.dtype), dtypes.bits(expr.dtype) < 32
        wide = dtypes.vector("int32" if is_signed(expr.dtype) else "uint32", lanes) if narrow else expr.dtype
        value = convert(context, self.value(expr.a), expr.a.dtype, wide)
        amount = convert(context, self.value(expr.b), expr.b.dtype, wide)
        if expr.op == "shl":
            result = builder.shl(value, amount)
        else:
            result = builder.ashr(value, amount) if is_signed(expr.dtype) else builder.lshr(value, amount)
        return convert(context, result, wide, expr.dtype)

    def _half_binary(self, expr: ir.Binary) -> Value:
        """Compute in float and round once: float has more than twice the digits, so the result is correctly rounded."""
        wide = dtypes.vector("float32", dtypes.lanes(expr.a.dtype))
        compares = expr.op in ir.COMPARISONS
        result = ir.Binary(expr.op, ir.Cast(expr.a, wide), ir.Cast(expr.b, wide), expr.dtype if compares else wide)
        return self.value(result if compares else ir.Cast(result, expr.dtype))

    def _lazy_logic(self, expr: ir.Binary) -> Value:
        is_and = expr.op == "land"
        if not _may_be_computed(expr.b):
            then, otherwise = (expr.b, ir.Const(False, "bool")) if is_and else (ir.Const(True, "bool"), expr.b)
            return self._branched(ir.Select(expr.a, then, otherwise, "bool"))
        builder, a, b = self._context.builder, self.value(expr.a), self.value(expr.b)
        # a select, because the right side may be poison if the left side decides the result
        truth = ll.Constant(INT1, not is_and)
        if dtypes.lanes(expr.dtype) > 1:
            return builder.and_(a, b) if is_and else builder.or_(a, b)
        return builder.select(a, b, truth) if is_and else builder.select(a, truth, b)

    def _select(self, expr: ir.Select) -> Value:
        whole = self._in_body or dtypes.lanes(expr.condition.dtype) > 1
        if whole or (_may_be_computed(expr.then) and _may_be_computed(expr.otherwise)):
            condition, then, otherwise = map(self.value, (expr.condition, expr.then, expr.otherwise))
            return self._context.builder.select(condition, then, otherwise)
        return self._branched(expr)

    def _branched(self, expr: ir.Select) -> Value:
        """Compute only the selected arm."""
        context, builder = self._context, self._context.builder
        condition = self.value(expr.condition)
        then, otherwise, after = (builder.append_basic_block() for _ in range(3))
        builder.cbranch(condition, then, otherwise)
        arms = []
        for block, arm in ((then, expr.then), (otherwise, expr.otherwise)):
            with context.block(block):
                value = self.value(arm)
                arms.append((value, builder.block))
                builder.branch(after)
        builder.position_at_end(after)
        result = builder.phi(value_type(expr.dtype))
        for value, block in arms:
            result.add_incoming(value, block)
        return result

    def _call(self, expr: ir.Call) -> Value:
        if expr.name == "within":
            return self.value(expr.args[0])
        if expr.name == "word":
            return self._context.builder.bitcast(self.value(expr.args[0]), INT32)
        source = expr.args[0].dtype
        body = INTRINSICS.get(expr.name).body(source)
        if body is not None:
            args = [self.value(arg) for arg in expr.args]
            if body.key == "round_float16" and self._context.machine.converts_halves:
                half = self._converted("float16_from_float", args[0], source)
                return self._converted("float16_to_float", half, source)
            own = instruction(self._context, expr.name, args)
            return self._inlined(body.on_lanes(dtypes.lanes(source)), args) if own is None else own
        if dtypes.element(source) in HALF_FLOATS and expr.name not in OF_BITS:
            wide = dtypes.vector("float32", dtypes.lanes(source))
            classifies = dtypes.element(expr.dtype) == "bool"
            arguments = tuple(ir.Cast(arg, wide) for arg in expr.args)
            call = ir.Call(expr.name, arguments, expr.dtype if classifies else wide)
            return self.value(call if classifies else ir.Cast(call, expr.dtype))
        return call_intrinsic(self._context, expr.name, [self.value(arg) for arg in expr.args], expr.dtype)

    def _inlined(self, body: IntrinsicBody, args: Sequence[Value]) -> Value:
        """Return the result of a body. Unselected values may be computed, so selects need no branches."""
        variables, outer = self._context.variables, self._in_body
        self._in_body = True
        variables.update((id(param), arg) for param, arg in zip(body.params, args, strict=True))
        for step in body.steps:
            variables[id(step.var)] = self.value(step.value)
        result = self.value(body.result)
        self._in_body = outer
        return result


def _is_zero(value: Value) -> bool:
    return isinstance(value, ll.Constant) and value.constant == 0


def _is_only_added(let: ir.Let) -> bool:
    """Return whether all uses of a binding are operands of sums in the straight-line code after it."""
    lets, last = inside_lets(let.body)
    exprs = chain.from_iterable(map(own_nodes, (*lets, *(last.stmts if isinstance(last, ir.Seq) else (last,)))))
    sums = [node for node in exprs if isinstance(node, ir.Binary) and node.op in ("add", "sub")]
    added = sum((node.a is let.var) != (node.b is let.var) for node in sums)
    return 0 < added == sum(node is let.var for node in nodes(let.body))


def _may_be_computed(expr: Expr) -> bool:
    """Return whether an expression may be speculated: it has no loads and is cheap."""
    return all(
        count < _SPECULATED
        and not isinstance(node, (ir.Load, ir.Call))
        and not (isinstance(node, ir.Binary) and node.op in _DIVISIONS and not isinstance(node.b, ir.Const))
        for count, node in enumerate(walk_expr(expr))
    )


# exact, so an instruction and a library call have the same result
_EXACT = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fabs": "fabs", "round_even": "rint",
    "round_away": "round",
}  # fmt: skip

_LIBRARY = frozenset(
    {
        "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "erf", "pow", "fmod",
    }
)  # fmt: skip
_BITCASTS = {"bits_of_float": INT32, "float_of_bits": FLOAT}

OF_BITS = frozenset({"run"})
"""Intrinsics that operate on the bits of elements of any dtype."""


def convert(context: FunctionContext, value: Value, source: str, target: str) -> Value:
    """Convert a value from dtype `source` to `target`, which has the same number of lanes; neither is a half float."""
    if source == target:
        return value
    builder, kind = context.builder, value_type(target)
    before, after = dtypes.element(source), dtypes.element(target)
    if dtypes.is_float(before):
        if after == "bool":
            return builder.fcmp_unordered("!=", value, context.number(0.0, value))
        if dtypes.is_float(after):
            return builder.fpext(value, kind) if before == "float32" else builder.fptrunc(value, kind)
        return builder.fptosi(value, kind) if is_signed(after) else builder.fptoui(value, kind)
    if after == "bool":
        return builder.icmp_unsigned("!=", value, context.number(0, value))
    if dtypes.is_float(after):
        return builder.sitofp(value, kind) if is_signed(before) else builder.uitofp(value, kind)
    if before == "bool" or dtypes.bits(after) > dtypes.bits(before):
        return builder.sext(value, kind) if is_signed(before) else builder.zext(value, kind)
    return builder.trunc(value, kind) if dtypes.bits(after) < dtypes.bits(before) else value


def divide(
    context: FunctionContext, expr: ir.Binary, a: Value, b: Value, dividend: Interval, divisor: Interval
) -> Value:
    """Return the quotient or remainder, rounded down or towards zero, depending on the operator.

    Where C's behaviour is undefined, division by zero yields zero, and an overflowing quotient wraps. `dividend` and
    `divisor` are the known ranges of `a` and `b`.
    """
    builder = context.builder
    is_quotient = expr.op.endswith("div")
    if not is_signed(expr.dtype) or (dividend.low >= 0 and divisor.low > 0):
        divided = builder.udiv if is_quotient else builder.urem
        if divisor.low > 0:
            return divided(a, b)
        zero = context.number(0, b)
        is_zero = builder.icmp_unsigned("==", b, zero)
        return builder.select(is_zero, zero, divided(a, builder.select(is_zero, context.number(1, b), b)))
    rounds_down = expr.op.startswith("floor")
    if divisor.low > 0 or divisor.high < -1:
        return _signed(context, a, b, is_quotient=is_quotient, rounds_down=rounds_down)
    zero, minus_one = context.number(0, b), context.number(-1, b)
    is_zero, is_minus_one = builder.icmp_signed("==", b, zero), builder.icmp_signed("==", b, minus_one)
    safe = builder.select(builder.or_(is_zero, is_minus_one), context.number(1, b), b)
    result = _signed(context, a, safe, is_quotient=is_quotient, rounds_down=rounds_down)
    result = builder.select(is_minus_one, builder.sub(zero, a) if is_quotient else zero, result)
    return builder.select(is_zero, zero, result)


def _signed(context: FunctionContext, a: Value, b: Value, *, is_quotient: bool, rounds_down: bool) -> Value:
    """Divide by a number other than 0 and -1."""
    builder = context.builder
    rest = builder.srem(a, b)
    if not rounds_down:
        return builder.sdiv(a, b) if is_quotient else rest
    zero = context.number(0, b)
    differ = builder.icmp_signed("<", builder.xor(rest, b), zero)
    down = builder.and_(builder.icmp_signed("!=", rest, zero), differ)
    if is_quotient:
        return builder.sub(builder.sdiv(a, b), builder.zext(down, b.type))
    return builder.add(rest, builder.select(down, b, zero))


def integer_power(context: FunctionContext, base: Value, exponent: Value, *, signed: bool) -> Value:
    """Return the power of two integers, which wraps; for a negative exponent, 1 / power rounded towards zero."""
    builder, zero, one = context.builder, context.number(0, base), context.number(1, base)
    before = builder.block
    head, body, after = (builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    power, factor, rest = (builder.phi(base.type) for _ in range(3))
    for phi, start in ((power, one), (factor, base), (rest, exponent)):
        phi.add_incoming(start, before)
    builder.cbranch(builder.icmp_unsigned("!=", rest, zero), body, after)
    builder.position_at_end(body)
    odd = builder.icmp_unsigned("!=", builder.and_(rest, one), zero)
    power.add_incoming(builder.mul(power, builder.select(odd, factor, one)), body)
    factor.add_incoming(builder.mul(factor, factor), body)
    rest.add_incoming(builder.lshr(rest, one), body)
    builder.branch(head)
    builder.position_at_end(after)
    if not signed:
        return power
    minus_one = context.number(-1, base)
    is_odd = builder.icmp_signed("!=", builder.and_(exponent, one), zero)
    of_minus_one = builder.select(is_odd, minus_one, one)
    of_one = builder.select(builder.icmp_signed("==", base, minus_one), of_minus_one, zero)
    of_one = builder.select(builder.icmp_signed("==", base, one), one, of_one)
    return builder.select(builder.icmp_signed("<", exponent, zero), of_one, power)


def instruction(context: FunctionContext, name: str, args: Sequence[Value]) -> Value | None:
    """Return the value of an intrinsic in the machine's native instructions; None if it has none for it."""
    for form in map(LLVM_FORMS.get, LLVM_FORMS):
        value = form.call(context, name, args)
        if value is not None:
            return value
    if name == "clz32":
        return context.intrinsic("ctlz", args, flag=False)
    return None


def call_intrinsic(context: FunctionContext, name: str, args: Sequence[Value], dtype: str) -> Value:
    """Return the value of an intrinsic without a body, with a result of this dtype."""
    value = instruction(context, name, args)
    if value is not None:
        return value
    if name == "integer_power":
        return integer_power(context, args[0], args[1], signed=not dtype.startswith("u"))
    if name in _BITCASTS:
        return context.builder.bitcast(args[0], resized(args[0].type, _BITCASTS[name]))
    if name == "isnan":
        return context.builder.fcmp_unordered("uno", args[0], args[0])
    if name == "isinf":
        size = context.intrinsic("fabs", [args[0]])
        return context.builder.fcmp_ordered("==", size, context.number(float("inf"), args[0]))
    if name in _EXACT:
        return context.intrinsic(_EXACT[name], args)
    if name in _LIBRARY and not isinstance(args[0].type, ll.VectorType):
        kind = args[0].type
        symbol = f"{name}f" if isinstance(kind, ll.FloatType) else name
        return context.builder.call(context.declared(symbol, kind, [kind] * len(args), pure=True), list(args))
    raise InternalError(f"LLVM code has no intrinsic '{name}' of {dtype}")
