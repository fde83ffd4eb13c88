"""The examples in the docstrings of the public functions run, and print what they say."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path

import numpy as np
import pytest

import mlfc

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
# without an example that runs here: modules, classes of results, devices, long runs, files with samples
OTHERS = {
    "CompiledModel", "ConstantPool", "InferenceSession", "SessionOptions", "compile", "compile_matrix", "cpu", "cuda",
    "debug_executor", "errors", "examine", "examples", "get_available_providers", "get_num_threads", "graph_executor",
    "load_param_dict", "load_profiled", "memory_map", "onnx_backend", "opencl", "operators", "quantize",
    "runtime", "tune",
}  # fmt: skip
PUBLIC = sorted({*mlfc._HOMES} - OTHERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, its archive and its library."""
    made = tmp_path_factory.mktemp("examples")
    shutil.copy(DIGITS, made / "digits.tflite")
    model = mlfc.compile(made / "digits.tflite", module_name="digits")
    model.export(made / "digits.tar")
    model.export_library(made / "digits.so")
    return made


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_prints_what_it_says(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "verify":
        pytest.importorskip("ai_edge_litert", reason="pip install ai-edge-litert")
    monkeypatch.chdir(folder)
    before = mlfc.get_num_threads()
    values = {"mlfc": mlfc, "np": np, "image": np.zeros((1, 8, 8, 1), np.int8), "Dim": mlfc.Dim}
    values["import_model"] = mlfc.import_model
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(mlfc, name), name, globs=values)
    assert [example for example in test.examples if doctest.SKIP not in example.options]
    try:
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
    finally:
        mlfc.set_num_threads(before)
