"""Arguments and comments of kernel calls in main functions, for static and for dynamic models."""

from __future__ import annotations

from collections.abc import Mapping

from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.constants import ConstantTable
from mlfc.tir import host
from mlfc.tir.host import UINT8, VOID, Body, Expr, Type, const, pointer
from mlfc.tir.ir import PrimFunc
from mlfc.tir.program import KernelCall, Value

ADDRESS, BYTES = pointer(VOID), pointer(UINT8)


def at(place: Expr, offset: int) -> Expr:
    """Return the address `offset` bytes after `place`."""
    return place + offset if offset else place


def constant_array(constants: ConstantTable, value: Value) -> Expr:
    """Return the array of a constant."""
    return host.Global(pointer(const(Type(scalar_type(value.dtype)))), constants.symbol(value), is_array=True)


def element_pointer(dtype: str, *, is_output: bool) -> Type:
    """Return the type of a kernel's pointer parameter for elements of a dtype."""
    name = scalar_type(dtype)
    element = UINT8 if name == UINT8.name else Type(name)
    return pointer(element if is_output else const(element))


def as_argument(place: Expr, dtype: str, *, is_output: bool) -> Expr:
    """Return an address as an argument of a kernel, cast unless C converts it implicitly."""
    wanted, own = element_pointer(dtype, is_output=is_output), element_pointer(dtype, is_output=True)
    fits = place.type.declared() in {kind.declared() for kind in (ADDRESS, wanted, own)}
    return place if fits else place.cast(wanted)


def last_arguments(variables: Mapping[str, str], kernel: PrimFunc) -> list[Expr]:
    """Return the address of the variable that a shared function gets after the pointers, if any."""
    return [host.Global(VOID, variables[kernel.name]).address] if kernel.name in variables else []


def comment_nodes(body: Body, call: KernelCall) -> None:
    """Write a comment with the model's nodes that a call computes."""
    if call.nodes:
        body.add(host.Comment(", ".join(node[:100] for node in call.nodes)[:400]))
