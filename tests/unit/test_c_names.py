from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfc.support.c_names import KEYWORDS, module_name, sanitize, unique
from tests.conftest import need

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@given(st.text(max_size=300))
def test_any_text_becomes_a_bounded_legal_identifier(text: str) -> None:
    name = sanitize(text)
    assert IDENTIFIER.fullmatch(name)
    assert name not in KEYWORDS
    assert not re.match(r"_[A-Z_]", name)
    assert len(name) <= 97


@given(st.lists(st.text(max_size=8), max_size=20))
def test_unique_names_differ_even_without_case(texts: list[str]) -> None:
    names = unique(texts)
    assert len(names) == len(texts)
    assert len({name.lower() for name in names}) == len(names)


def test_clash_with_a_name_that_is_wanted_later_does_not_take_it() -> None:
    assert unique(["a", "a", "a_1"]) == ["a", "a_2", "a_1"]


def test_reserved_names_are_left_alone() -> None:
    assert unique(["Workspace"], ["workspace"]) == ["Workspace_1"]


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [("serving_default_x:0", "serving_default_x_0"), ("Identity", "Identity"), ("int", "int_"), ("1x", "n1x"),
     ("", "unnamed"), ("_Bool", "n_Bool"), ("日本", "n__"), ("a__b", "a__b")],
)  # fmt: skip
def test_names_as_tvm_headers_have_them(given_name: str, expected: str) -> None:
    assert sanitize(given_name) == expected


def test_long_names_that_differ_at_the_end_stay_different() -> None:
    assert sanitize("x" * 10_000 + "a") != sanitize("x" * 10_000 + "b")


@pytest.mark.parametrize("text", ["KWS-Model v1", "Int", "9lives", "K" * 500, ""])
def test_module_names_are_lower_case_and_stable(text: str) -> None:
    name = module_name(text)
    assert name == name.lower()
    assert module_name(name) == name


def test_the_default_module_is_named_as_in_tvms_archives() -> None:
    assert module_name("default") == "default"


@pytest.mark.parametrize("language", ["c", "c++"])
def test_no_keyword_of_the_compiler_passes(language: str) -> None:
    need("gcc", "gcc")
    words = ["int", "class", "restrict", "typeof", "asm", "nullptr", "co_await", "linux", "unix", "inline", "bool"]
    text = "\n".join(f"int {sanitize(word)};" for word in words)
    subprocess.run(["gcc", "-x", language, "-fsyntax-only", "-"], input=text, text=True, check=True)


def test_no_macro_of_the_standard_headers_passes() -> None:
    need("gcc", "gcc")
    headers = (
        "assert complex ctype fenv float inttypes iso646 limits locale math setjmp signal stdarg stdbool stddef stdint "
        "stdio stdlib string tgmath time wchar wctype"
    )
    includes = "".join(f"#include <{name}.h>\n" for name in headers.split())
    command = ["gcc", "-std=c99", "-dM", "-E", "-"]
    defined = subprocess.run(command, input=includes, text=True, check=True, capture_output=True).stdout
    # function-like macros only expand before a parenthesis, which never follows the name of a field
    macros = re.findall(r"^#define ([A-Za-z]\w*)(?: |$)", defined, re.MULTILINE)
    assert "INT8_MAX" in macros
    assert [name for name in [*macros, "errno", "ERANGE"] if sanitize(name) == name] == []
