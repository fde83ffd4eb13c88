"""Numbers and names in text: the shortest digits, equal with all versions of numpy; titles of models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfc.support.text import model_title, shortest_digits


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_digits_read_back_as_the_same_number(value: float) -> None:
    narrow = np.float32(value)
    text = shortest_digits(narrow)
    assert np.float32(float(text)).tobytes() == narrow.tobytes()
    assert len(text) <= len(f"{value:.9e}") + 8


@pytest.mark.parametrize(
    ("value", "text"),
    [(12582912, "12582912.0"), (1e15, "1000000000000000.0"), (3e16, "3e+16"), (0.1, "0.1"), (9e-5, "9e-05"),
     (-0.0, "-0.0"), (1e-45, "1e-45")],
)  # fmt: skip
def test_exponents_start_where_python_has_them(value: float, text: str) -> None:
    assert shortest_digits(np.float32(value)) == text
    assert shortest_digits(0.1) == "0.1"


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("models/kws.tflite", "kws"),
        ("net.v1.onnx", "net.v1"),
        ("net.v1", "net.v1"),
        ("NET.ONNX", "NET"),
        ("old.tar.gz", "old"),
        (".onnx", ".onnx"),
    ],
)
def test_the_title_of_a_model_lacks_only_the_suffix_of_its_format(path: str, title: str) -> None:
    assert model_title(path) == title
