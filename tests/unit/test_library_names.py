"""Names of Arduino libraries, by Arduino's library specification."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfc.micro.project.arduino import library_name
from mlfc.support.c_names import module_name


@pytest.mark.parametrize(
    ("module", "library"),
    [
        ("kws", "KwsModel"),
        ("hello_world_int8", "HelloWorldInt8Model"),
        ("keras_model", "KerasModel"),
        # on case-insensitive file systems, a header String.h would hide the system's
        ("string", "StringModel"),
        # only Arduino's own libraries may have such names
        ("arduino", "TheArduinoModel"),
    ],
)
def test_libraries_are_named_after_modules(module: str, library: str) -> None:
    assert library_name(module) == library


@given(st.text(max_size=200))
def test_every_module_gives_a_name_that_arduino_takes(name: str) -> None:
    library = library_name(module_name(name))
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9]{1,62}", library)
    assert not library.startswith("Arduino")
