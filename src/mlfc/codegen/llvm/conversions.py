"""Conversions between dtypes, as C does them."""

from __future__ import annotations

from mlfc.codegen.llvm.context import Context
from mlfc.codegen.llvm.llvm_types import (
    Value,
    is_signed,
    value_type,
)
from mlfc.support import dtypes


def convert(context: Context, value: Value, source: str, target: str) -> Value:
    """Return a value of dtype `source` as `target`, which has as many lanes; neither is a half float."""
    if source == target:
        return value
    before = dtypes.element(source)
    if dtypes.is_float(before):
        return _from_float(context, value, before, target)
    return _from_integer(context, value, before, target)


def _from_float(context: Context, value: Value, before: str, target: str) -> Value:
    builder, kind = context.builder, value_type(target)
    after = dtypes.element(target)
    if after == "bool":
        return builder.fcmp_unordered("!=", value, context.number(0.0, value))
    if dtypes.is_float(after):
        return builder.fpext(value, kind) if before == "float32" else builder.fptrunc(value, kind)
    return builder.fptosi(value, kind) if is_signed(after) else builder.fptoui(value, kind)


def _from_integer(context: Context, value: Value, before: str, target: str) -> Value:
    builder, kind = context.builder, value_type(target)
    after = dtypes.element(target)
    if after == "bool":
        return builder.icmp_unsigned("!=", value, context.number(0, value))
    if dtypes.is_float(after):
        return builder.sitofp(value, kind) if is_signed(before) else builder.uitofp(value, kind)
    if before == "bool" or dtypes.bits(after) > dtypes.bits(before):
        return builder.sext(value, kind) if is_signed(before) else builder.zext(value, kind)
    return builder.trunc(value, kind) if dtypes.bits(after) < dtypes.bits(before) else value
