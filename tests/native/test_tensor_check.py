"""The tensor comparison of demos and self-tests: the element that differs most, with numbers as in printf."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlfc.archive.templates.documents import check_files
from mlfc.library.toolchain import compile_cached
from tests.native.extracted import WARNINGS

KINDS = {"int8": 1, "int64": 4, "float32": 11}
CONSOLE = b"""
#include <string.h>
#include "tensor_check.h"
char written[400];
void tensor_write(const char *text) { strncat(written, text, sizeof written - strlen(written) - 1); }
int check_one(int kind, size_t count, const void *found, const void *expected) {
  struct tensor_checks checks = {0};
  const struct tensor output = {"out", (enum tensor_kind)kind, count, found};
  tensor_check(&checks, "m", 3, &output, &expected, 1);
  return tensor_verdict(&checks);
}
"""


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    path: Path = compile_cached({**check_files(), "console.c": CONSOLE}, tuple(WARNINGS.split()))
    return ctypes.CDLL(str(path))


def written(library: ctypes.CDLL, call: Callable[[], object]) -> str:
    text = (ctypes.c_char * 400).in_dll(library, "written")
    text.value = b""
    call()
    return text.value.decode()


NUMBERS = [
    0.5,
    1e-4,
    9.9999949e-5,
    1e-5,
    999999.75,
    0.1,
    2 / 3,
    123456.75,
    1e300,
    5e-324,
    2.5e-7,
    1e22 / 3,
    -0.75,
    99999.95,
]
WHOLE = [0.0, 7.0, -128.0, 4294967295.0, 1000000.0]


def test_numbers_are_written_as_printf_writes_them(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    many = (rng.uniform(1, 10, 200) * 10.0 ** rng.integers(-30, 30, 200)).tolist()
    for number in (*NUMBERS, *many, float("inf"), -float("inf"), float("nan")):
        text = written(library, lambda number=number: library.text_number(ctypes.c_double(number)))
        # %g formats integers of more than six digits differently
        assert text == f"{number:g}" or float(text) == number == int(number)
    for number in WHOLE:
        assert written(library, lambda number=number: library.text_number(ctypes.c_double(number))) == str(int(number))


def check(library: ctypes.CDLL, dtype: str, found: list[float], expected: list[float]) -> tuple[str, str]:
    ours, theirs = np.array(found, dtype), np.array(expected, dtype)
    data = [ctypes.c_void_p(array.ctypes.data) for array in (ours, theirs)]
    text = written(library, lambda: library.check_one(KINDS[dtype], ctypes.c_size_t(ours.size), *data))
    line, verdict, end = text.split("\n")
    assert not end
    return line, verdict


def test_the_element_that_differs_most_is_named(library: ctypes.CDLL) -> None:
    line, verdict = check(library, "int8", [1, 2, -7, 4], [1, 3, 8, 5])
    assert line == "FAIL m, vector 3: largest difference 15, 0 allowed, in element 2 of out"
    assert verdict == "FAIL 1 of 1, largest difference 15"
    assert check(library, "int8", [1, 2], [1, 2]) == (
        "PASS m, vector 3: largest difference 0, 0 allowed",
        "PASS 1 of 1, largest difference 0",
    )


def test_floats_may_differ_by_a_part_of_the_largest(library: ctypes.CDLL) -> None:
    line, verdict = check(library, "float32", [1000.0625, 0.5], [1000.0, 0.5])
    assert line == "PASS m, vector 3: largest difference 0.0625, 0.1 allowed, in element 0 of out"
    assert verdict == "PASS 1 of 1, largest difference 0.0625"
    assert check(library, "float32", [1000.0, 0.75], [1000.0, 0.5])[0].startswith(
        "FAIL m, vector 3: largest difference 0.25"
    )
    assert check(library, "float32", [np.nan], [0.5])[0].startswith("FAIL m, vector 3: largest difference inf")
    assert check(library, "float32", [np.nan], [np.nan])[0].startswith("PASS")


def test_wide_integers_differ_by_less_than_a_double_can_tell(library: ctypes.CDLL) -> None:
    line, _ = check(library, "int64", [0, 2**60 + 1], [0, 2**60])
    assert line == "FAIL m, vector 3: largest difference 0, 0 allowed, in element 1 of out"
