"""Printing loop-level expressions in the languages of devices: as C, but for vectors and what has another name there.

Vectors are only moved: loaded, chosen between, filled with one value, stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfc.codegen.c_expr import ATOM, CLASSIFY, MATH, MATH_RENAMED, OF_BITS, TERNARY, ExprPrinter
from mlfc.codegen.c_types import HALF_FLOATS
from mlfc.codegen.dialect import Dialect
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.intrinsics import INTRINSICS
from mlfc.tir.ir import Expr


@dataclass(eq=False)
class DeviceExprPrinter(ExprPrinter):
    """Prints expressions of one kernel.

    Parameters
    ----------
    dialect : Dialect
    contracts : bool
        Whether a float product and a sum may become one operation.
    """

    dialect: Dialect
    contracts: bool

    def vector_type(self, dtype: str) -> str:
        """Return the dialect's name of a vector type."""
        return self.dialect.vector_type(dtypes.element(dtype), dtypes.lanes(dtype))

    def variable(self, var: ir.Var) -> str:
        """Return the name of a variable."""
        return self.name_of(var)

    def _note_vector(self, dtype: str) -> None:
        """Do nothing: the dialects have their own vectors."""

    def _load(self, expr: ir.Load) -> tuple[str, int]:
        if dtypes.lanes(expr.dtype) == 1:
            return super()._load(expr)
        return self.dialect.vector_load(self.vector_type(expr.dtype), self.address(expr.buffer, expr.indices)), ATOM

    def _select(self, expr: ir.Select) -> tuple[str, int]:
        if dtypes.lanes(expr.condition.dtype) > 1:
            raise InternalError("kernels of devices have no vectors of conditions")
        arms = f"{self.expr(expr.then, TERNARY + 1)} : {self.expr(expr.otherwise)}"
        return f"{self.expr(expr.condition, TERNARY + 1)} ? {arms}", TERNARY

    def _broadcast(self, expr: ir.Broadcast) -> tuple[str, int]:
        kind, lanes = self.vector_type(expr.dtype), dtypes.lanes(expr.dtype)
        return self.dialect.splat(kind, lanes, self.expr(expr.value)), ATOM

    def _binary(self, expr: ir.Binary) -> tuple[str, int]:
        self._scalar(expr)
        product = self.dialect.product
        if expr.op == "mul" and product and not self.contracts and expr.dtype in ("float32", "float64"):
            return product(expr.dtype, self.expr(expr.a), self.expr(expr.b)), ATOM
        return super()._binary(expr)

    def _cast(self, expr: ir.Cast) -> tuple[str, int]:
        self._scalar(expr)
        return super()._cast(expr)

    @staticmethod
    def _scalar(expr: Expr) -> None:
        if dtypes.lanes(expr.dtype) > 1:
            raise InternalError("kernels of devices do no arithmetic on vectors")

    def _call(self, expr: ir.Call) -> tuple[str, int]:
        if expr.name == "word":
            return self._word(expr.args[0])
        self._scalar(expr)
        if expr.name == "within":
            return self._print(expr.args[0])
        if expr.name == "integer_power":
            return super()._call(expr)
        if expr.name in OF_BITS:
            return self.helper(expr.name, *expr.args)
        source = expr.args[0].dtype
        if body := INTRINSICS.get(expr.name).body(source):
            return self.helper(body.key, *expr.args)
        if source in HALF_FLOATS:
            return super()._call(expr)
        name = MATH_RENAMED.get(expr.name, expr.name)
        arguments = ", ".join(map(self.expr, expr.args))
        if name in CLASSIFY:
            return super()._call(expr)
        if name not in MATH and expr.name not in MATH_RENAMED:
            raise InternalError(f"kernels of devices have no intrinsic '{expr.name}'")
        return f"{name}{self.dialect.math_suffix if source == 'float32' else ''}({arguments})", ATOM

    def _word(self, elements: Expr) -> tuple[str, int]:
        if not isinstance(elements, ir.Load):
            raise InternalError("a word is taken from memory only")
        return self.dialect.word(self.address(elements.buffer, elements.indices)), ATOM
