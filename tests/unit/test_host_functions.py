"""Host functions as C: precedence, and where lines break."""

from __future__ import annotations

from mlfc.codegen.c_host import WIDTH, c_expression, c_function, head, plain, prototype
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
