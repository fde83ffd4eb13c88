"""Code around kernels: pointers of C structs, addresses, variables and loops, checks that leave a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from mlfc.codegen.llvm.llvm_types import INT8, INT32, INT64, POINTER


def status(value: int) -> ir.Constant:
    """Return what functions return: 0, or -1 for failure."""
    return ir.Constant(INT32, value)


def at(builder: ir.IRBuilder, pointer: ir.Value, offset: int) -> ir.Value:
    """Return the address `offset` bytes behind a pointer."""
    if not offset:
        return pointer
    return builder.gep(pointer, [ir.Constant(INT64, offset)], inbounds=True, source_etype=INT8)


def field(builder: ir.IRBuilder, struct: ir.Value, index: int) -> ir.Value:
    """Return the pointer in field `index` of a C struct of pointers."""
    place = builder.gep(struct, [ir.Constant(INT32, index)], inbounds=True, source_etype=POINTER) if index else struct
    return builder.load(place, typ=POINTER)


def leave_where_null(builder: ir.IRBuilder, pointers: Iterable[ir.Value]) -> None:
    """Return -1 from the function if one of the pointers is NULL."""
    for pointer in pointers:
        is_null = builder.icmp_unsigned("==", pointer, ir.Constant(POINTER, None))
        with builder.if_then(is_null, likely=False):
            builder.ret(status(-1))


def c_function(module: ir.Module, name: str, parameters: Iterable[ir.Type], result: ir.Type = INT32) -> ir.Function:
    """Return the function of a module with this C name, declared where it is not there yet."""
    known = module.globals.get(name)
    if known is not None:
        return known
    function = ir.Function(module, ir.FunctionType(result, list(parameters)), name)
    if result == INT32:  # some ABIs want the upper half of the register filled
        function.return_value.add_attribute("signext")
    function.attributes.add("nounwind")
    return function


def constant_global(module: ir.Module, name: str, value: ir.Constant) -> ir.GlobalVariable:
    """Return a global of a name like `name` that holds a constant, for this module alone."""
    made = ir.GlobalVariable(module, value.type, module.get_unique_name(name))
    made.initializer, made.global_constant, made.linkage = value, True, "internal"
    return made


def variable(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return a place on the stack that holds a value; made where the function begins, for loops come by often."""
    with builder.goto_entry_block():
        place = builder.alloca(value.type)
    builder.store(value, place)
    return place


def add_to(builder: ir.IRBuilder, place: ir.Value, amount: int) -> None:
    """Add a number to what a place holds."""
    value = builder.load(place)
    builder.store(builder.add(value, ir.Constant(value.type, amount)), place)


def element(builder: ir.IRBuilder, array: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
    """Return the place of an element of an array."""
    return builder.gep(array, [index], inbounds=True, source_etype=kind)


@contextmanager
def while_loop(builder: ir.IRBuilder, condition: Callable[[], ir.Value]) -> Iterator[None]:
    """Write a loop whose body follows."""
    head, body = builder.append_basic_block("head"), builder.append_basic_block("body")
    end = builder.append_basic_block("end")
    builder.branch(head)
    builder.position_at_end(head)
    builder.cbranch(condition(), body, end)
    builder.position_at_end(body)
    yield
    builder.branch(head)
    builder.position_at_end(end)
