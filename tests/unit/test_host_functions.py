"""Host functions: the rules of their IR, and their C code: precedence and line breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mlfc import memory
from mlfc.codegen.c_host import WIDTH, c_expression, c_function, head, plain, prototype
from mlfc.codegen.device import device_kernels
from mlfc.codegen.emit import constant_table, interface_of
from mlfc.codegen.host.aot import AotFunctions
from mlfc.codegen.host.packed import CHECKS, LAUNCHES, launching_function, packed_function
from mlfc.codegen.unit import NOTHING_SHARED, Unit
from mlfc.errors import InternalError
from mlfc.tir.host import (
    CHAR,
    INT,
    INT32,
    NULL,
    UINT8,
    UINT64,
    VOID,
    Body,
    Choice,
    Function,
    Name,
    Type,
    common,
    const,
    declaration,
    expr,
    names,
    pointer,
)
from tests.native.programs import chain, product
from tests.native.test_launch_code import program as launch_program
from tests.verify_host import verify_host

A, B, C = names(a=INT, b=INT, c=INT)


def test_types_are_declared_as_c_does() -> None:
    assert pointer(const(pointer(VOID))).declared("data") == "void *const *data"
    assert pointer(const(UINT8)).declared() == "const uint8_t *"
    assert const(INT).declared("code") == "const int code"


def test_parentheses_are_where_c_needs_them() -> None:
    assert c_expression((A + 7) // 8 * B) == "(a + 7) / 8 * b"
    assert c_expression(A - (B - C)) == "a - (b - c)"
    assert c_expression(A.eq(1) & (B.ne(2) | (C > 3))) == "a == 1 && (b != 2 || c > 3)"
    assert c_expression((A.eq(1) & B.eq(2)) | C.eq(3)) == "(a == 1 && b == 2) || c == 3"
    assert c_expression(Choice(INT, A.eq(B), A, C).ne(B)) == "(a == b ? a : c) != b"
    assert c_expression((A + B).cast(CHAR)) == "(char)(a + b)"


def test_fields_and_elements_follow_pointers() -> None:
    struct = Type("struct pair", fields=(("first", INT), ("rest", pointer(INT))))
    near, far = Name(struct, "near"), Name(pointer(struct), "far")
    assert c_expression(near["rest"][2]) == "near.rest[2]"
    assert c_expression(far["first"].address) == "&far->first"
    assert far["rest"].type == pointer(INT)


def test_integers_compute_in_the_type_of_c() -> None:
    assert common(UINT8, UINT8) == INT
    assert common(INT32, UINT64) == UINT64
    assert common(pointer(CHAR), INT) == pointer(CHAR)


def test_long_lines_break_behind_commas_and_connectives() -> None:
    parameters = names(**{f"a_parameter_with_number_{index}": pointer(CHAR) for index in range(8)})
    body = Body()
    body.fails_where(parameters[0].eq(NULL) | parameters[1].eq(NULL) | parameters[2].eq(NULL) | parameters[3].eq(NULL))
    body.returns(declaration("called", INT, *[pointer(CHAR)] * 8)(*parameters))
    function = Function("long_function", INT, parameters, body.stmts)
    lines = c_function(function, WIDTH).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[1].startswith(" " * len("int long_function(") + "char *")
    assert "      a_parameter_with_number_3 == NULL) {" in lines
    assert len(c_function(function).splitlines()) == 6


def test_heads_name_parameters_and_prototypes_do_not() -> None:
    function = Function("run", INT32, names(data=pointer(VOID)), is_static=True)
    assert plain(head(function)) == "static int32_t run(void *data)"
    assert prototype(function) == "static int32_t run(void *);"
    assert prototype(declaration("stop", VOID)) == "void stop(void);"


def test_strings_are_escaped() -> None:
    assert c_expression(expr('a"b')) == r'"a\042b"'


@pytest.mark.parametrize("function", [*CHECKS, *LAUNCHES], ids=lambda function: function.name)
def test_functions_of_all_modules_follow_the_rules(function: Function) -> None:
    verify_host(function)


def test_packed_functions_follow_the_rules() -> None:
    verify_host(packed_function(product(3, 5, 2), "packed", "compute", "values"))
    for prim in launch_program().kernels:
        verify_host(launching_function(prim, "packed", device_kernels(prim, "packed")))


@pytest.mark.parametrize("external", [False, True])
def test_functions_of_aot_follow_the_rules(external: bool) -> None:
    program = chain(5)[0]
    unit = Unit(program, memory.plan(program), "chain", external_workspace=external)
    constants = constant_table(unit, NOTHING_SHARED)
    interface = interface_of(unit, NOTHING_SHARED, constants)
    for workspace_io in (False, True):
        chosen = replace(interface, workspace_io=workspace_io, inputs=(), outputs=()) if workspace_io else interface
        aot = AotFunctions(program, unit.plan, chosen, constants, unit.function_names())
        for function in (aot.entry(), *aot.mappers(), *([] if workspace_io else [aot.main()])):
            verify_host(function)


def _declared_twice(body: Body) -> None:
    body.declare("x", INT)
    body.declare("x", INT)


def _used_outside(body: Body) -> None:
    with body.loop("index", 4) as index:
        pass
    body.assign(body.declare("x", INT), index)


def _mixed(body: Body) -> None:
    body.declare("x", INT, NULL)


def _constant(body: Body) -> None:
    body.assign(body.declare("x", const(INT), 1), 2)


def _behind(body: Body) -> None:
    body.returns(0)
    body.declare("x", INT)


def _arguments(body: Body) -> None:
    body.evaluate(declaration("called", INT, INT)(1, 2))


def _endless(body: Body) -> None:
    body.fails_where(A.ne(0))


@pytest.mark.parametrize(
    ("write", "cause"),
    [
        (_declared_twice, "declared twice"),
        (_used_outside, "not declared"),
        (_mixed, r"expected int for x, got void \*"),
        (_constant, "constant"),
        (_behind, "behind a return"),
        (_arguments, "expected 1 arguments of called, got 2"),
        (_endless, "without a return"),
    ],
)
def test_what_breaks_a_rule_is_refused(write: Callable[[Body], None], cause: str) -> None:
    body = Body()
    write(body)
    if write is not _endless:
        body.returns(0)
    with pytest.raises(InternalError, match=cause):
        verify_host(Function("f", INT, (A,), body.stmts))
