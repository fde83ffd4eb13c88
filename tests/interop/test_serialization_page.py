"""The page on module serialization suffices to write a loader: its example reads libraries of TVM and mlfc."""

from __future__ import annotations

import ctypes
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import mlfc
from mlfc.runtime.modules.blob import SYMBOLS

# reads the descriptions that libraries contain
pytestmark = pytest.mark.usefixtures("unoptimized_builds")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "module-serialization.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    names: dict[str, Any] = {}
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exec(code, names)
    return names


@pytest.mark.parametrize(
    ("name", "kinds", "imports"),
    [
        ("llvm_factory", ["GraphExecutorFactory", "_lib"], [[1], []]),
        ("opencl_factory", ["GraphExecutorFactory", "_lib", "opencl"], [[1], [2], []]),
        ("opencl_lib", ["_lib", "opencl"], [[1], []]),
    ],
)
def test_it_reads_what_tvm_wrote(
    page: dict[str, Any], shared: Path, name: str, kinds: list[str], imports: list[list[int]]
) -> None:
    blob = (shared / "fixtures" / "tvm-0.14" / f"{name}.mblob.bin").read_bytes()
    assert page["classic"](blob) == (kinds, imports)


def blob_of(library: Path) -> bytes:
    """Return the content of a library's classic symbol."""
    start = (ctypes.c_char * 8).in_dll(ctypes.CDLL(str(library)), SYMBOLS["classic"])
    return ctypes.string_at(ctypes.addressof(start), 8 + struct.unpack("<Q", start.raw)[0])


@pytest.mark.parametrize(
    ("target", "executor", "kinds", "imports"),
    [
        ("c", "aot", ["AotExecutorFactory", "metadata_module", "_lib"], [[1], [2], []]),
        ("c", "graph", ["GraphExecutorFactory", "_lib"], [[1], []]),
        ("opencl", None, ["GraphExecutorFactory", "_lib", "opencl"], [[1], [2], []]),
    ],
)
def test_it_reads_what_mlfc_wrote(
    page: dict[str, Any],
    models: Path,
    tmp_path: Path,
    target: str,
    executor: str | None,
    kinds: list[str],
    imports: list[list[int]],
) -> None:
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    factory = mlfc.build(module, target, params, executor=executor, module_name="kws")
    library = factory.export_library(tmp_path / "kws.so")
    assert page["classic"](blob_of(library)) == (kinds, imports)


def test_the_smallest_blob_is_the_one_that_is_described(page: dict[str, Any]) -> None:
    words = [struct.pack("<Q", number) for number in (72, 2, 4, 12, 2, 0, 0, 0)]
    blob = b"".join([*words[:3], b"_lib", words[3], b"_import_tree", *words[4:]])
    assert len(blob) == 80
    assert page["classic"](blob) == (["_lib"], [[]])
