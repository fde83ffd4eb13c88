"""Archives and libraries of the digits model that were made while the project was called mlforge."""

from __future__ import annotations

import lzma
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.archive.describe.profile import load_profiled
from mlfc.archive.validate.validate import validate

Unpack = Callable[[str], Path]
HERE = Path(__file__).parent
DIGITS = HERE.parents[1] / "examples" / "digits" / "digits_int8.tflite"
ON_X86 = sys.platform == "linux" and platform.machine() == "x86_64"
FILES = [
    pytest.param(name, marks=[] if name.endswith(".tar") or ON_X86 else pytest.mark.skip("a library for x86-64 Linux"))
    for name in ("aot.tar", "two.tar", "aot.so", "two_graph.so")
]


@pytest.fixture
def unpack(tmp_path: Path) -> Unpack:
    def write(name: str) -> Path:
        (tmp_path / name).write_bytes(lzma.decompress((HERE / f"{name}.xz").read_bytes()))
        return tmp_path / name

    return write


@pytest.mark.parametrize("name", FILES)
def test_it_gives_what_the_model_gives(name: str, unpack: Unpack, tmp_path: Path) -> None:
    module = "a" if name.startswith("two") else None
    image = np.random.default_rng(0).integers(-128, 128, (1, 8, 8, 1)).astype(np.int8)
    module_ir, params = mlfc.import_model(DIGITS)
    mlfc.export_model_library_format(mlfc.build(module_ir, params=params), tmp_path / "today.tar")
    expected = mlfc.load(tmp_path / "today.tar").run(image)
    found = mlfc.load(unpack(name), module=module).run(image)
    np.testing.assert_array_equal(*found.values(), *expected.values())


@pytest.mark.parametrize("name", ["aot.tar", "two.tar"])
def test_archives_are_sound(name: str, unpack: Unpack) -> None:
    assert not list(validate(unpack(name)))


def test_its_operators_can_be_profiled(unpack: Unpack) -> None:
    model = load_profiled(unpack("aot.tar"))
    assert len(model.profile({"image": np.zeros((1, 8, 8, 1), np.int8)}).operators) == 4
