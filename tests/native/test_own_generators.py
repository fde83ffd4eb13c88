"""The generators in the page on external generators: custom C and runtime modules, from build to archive."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mlfc
from mlfc.archive.write.options import ExportOptions
from mlfc.byoc import GENERATORS, Composite, Generator
from mlfc.byoc.pattern import anything, op
from mlfc.errors import OptionError
from mlfc.factory import library_root
from mlfc.library.export import export_library
from mlfc.runtime.modules.module import loaders
from mlfc.support.content import to_bytes
from mlfc.tir.ir import External
from tests.conftest import need

pytestmark = pytest.mark.usefixtures("quick_builds")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "external-generators.md"
IMAGE = np.random.default_rng(4).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Run the page's Python code beside a model, and remove its generators and loaders afterwards."""
    folder = tmp_path_factory.mktemp("page")
    data, result = (helper.make_tensor_value_info(name, 1, [1, 3, 8, 8]) for name in ("input", "output"))
    nodes = [helper.make_node("Neg", ["input"], ["n"]), helper.make_node("Relu", ["n"], ["output"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [data], [result]), ir_version=8)
    onnx.save(model, folder / "model.onnx")
    names: dict[str, Any] = {"mlfc": mlfc, "image": IMAGE}
    with contextlib.chdir(folder):
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
            exec(block, names)
    yield names
    for table in (GENERATORS, loaders):
        for name in ("fast", "npu", "halves"):
            table._entries.pop(name, None)


def test_c_of_ones_own_is_built_and_travels(page: dict[str, Any], tmp_path: Path) -> None:
    np.testing.assert_array_equal(page["outputs"]["output"], np.maximum(-IMAGE, 0))
    (code,) = page["factory"].lib.imported_modules
    assert "fast_relu(input0[i])" in code.get_source()
    mlfc.export_model_library_format(page["factory"], tmp_path / "m.tar")
    assert mlfc.archive.validate(tmp_path / "m.tar") == []
    np.testing.assert_array_equal(mlfc.load(tmp_path / "m.tar").run(IMAGE)["output"], np.maximum(-IMAGE, 0))


def test_a_runtime_module_of_ones_own_computes_its_part(page: dict[str, Any], tmp_path: Path) -> None:
    factory = page["on_npu"]
    np.testing.assert_array_equal(factory.runtime.run(IMAGE)["output"], np.abs(IMAGE))
    mlfc.export_model_library_format(factory, tmp_path / "m.tar")
    assert mlfc.archive.validate(tmp_path / "m.tar") == []
    np.testing.assert_array_equal(mlfc.load(tmp_path / "m.tar").run(IMAGE)["output"], np.abs(IMAGE))


def test_objects_are_linked_with_the_text_that_calls_them(page: dict[str, Any], tmp_path: Path) -> None:
    factory = mlfc.build(replace(page["module"], byoc=(add_halves(tmp_path),)), "c", page["params"])
    np.testing.assert_array_equal(factory.runtime.run(IMAGE)["output"], -IMAGE / 2)
    mlfc.export_model_library_format(factory, tmp_path / "m.tar")
    np.testing.assert_array_equal(mlfc.load(tmp_path / "m.tar").run(IMAGE)["output"], -IMAGE / 2)


def add_halves(folder: Path) -> str:
    """Add a generator whose code calls a function of an object file; return its name."""
    source = folder / "half.c"
    source.write_text("float half(float x) { return x / 2; }\n")
    subprocess.run([need("gcc", "gcc"), "-O2", "-fPIC", "-c", source, "-o", folder / "half.o"], check=True)
    data = (folder / "half.o").read_bytes()
    GENERATORS._entries.pop("halves", None)

    def generate(part: Any) -> External:
        text = f"for (int32_t i = 0; i < {part.output.size}; ++i) {{\n  ${{output}}[i] = half(${{input0}}[i]);\n}}"
        return External("halves", text, ("float half(float x);",), (data,))

    GENERATORS.add("halves", Generator("halves", (Composite("relu", op("nn.relu", anything())),), generate))
    return "halves"


def expected_of(name: str) -> Any:
    return {"fast": np.maximum(-IMAGE, 0), "halves": -IMAGE / 2, "npu": np.abs(IMAGE)}[name]


# each generator with each target, and with each executor
@pytest.mark.parametrize(
    ("name", "executor", "target"),
    [("fast", "aot", "c"), ("fast", "graph", "llvm"), ("halves", "graph", "c"), ("halves", "aot", "llvm"),
     ("npu", "graph", "c"), ("npu", "graph", "llvm")],
)  # fmt: skip
def test_several_modules_have_parts_of_one_generator(
    page: dict[str, Any], name: str, executor: str, target: str, tmp_path: Path
) -> None:
    if name == "halves":
        add_halves(tmp_path)
    module, params = replace(page["module"], byoc=(name,)), page["params"]
    factories = [mlfc.build(module, target, params, executor=executor, module_name=title) for title in ("one", "two")]
    mlfc.export_model_library_format(factories, tmp_path / "m.tar")
    assert mlfc.archive.validate(tmp_path / "m.tar") == []
    export_library(library_root(factories), tmp_path / "m.so")
    for artifact in ("m.tar", "m.so"):
        for title in ("one", "two"):
            outputs = mlfc.load(tmp_path / artifact, module=title).run(IMAGE)
            np.testing.assert_array_equal(outputs["output"], expected_of(name))


@pytest.mark.parametrize("target", ["c", "llvm"])
@pytest.mark.parametrize("name", ["fast", "halves"])
def test_archives_build_what_generators_made(page: dict[str, Any], name: str, target: str, tmp_path: Path) -> None:
    if name == "halves":
        add_halves(tmp_path)
    factory = mlfc.build(replace(page["module"], byoc=(name,)), target, page["params"], module_name="m")
    mlfc.export_model_library_format(factory, tmp_path / "m.tar")
    with tarfile.open(tmp_path / "m.tar") as tar:
        tar.extractall(tmp_path / "m", filter="data")
        readme = (tmp_path / "m" / "README.md").read_text()
    assert f"What `codegen/{name}` has is compiled and linked with it." in readme
    subprocess.run([need("make", "make"), "-C", tmp_path / "m", "test"], check=True, capture_output=True)


def test_archives_with_runtime_modules_have_no_demo_that_could_not_run(page: dict[str, Any], tmp_path: Path) -> None:
    mlfc.export_model_library_format(page["on_npu"], tmp_path / "m.tar")
    with tarfile.open(tmp_path / "m.tar") as tar:
        assert not {"./Makefile", "./demo/demo.c", "./CMakeLists.txt"} & set(tar.getnames())
        readme = tar.extractfile("./README.md").read().decode()  # type: ignore[union-attr]
    assert "Parts of it, in `codegen/npu/`, are run by modules of the kind `npu`." in readme
    assert "    make" not in readme
    with pytest.raises(OptionError, match="modules of other kinds"):
        mlfc.export_model_library_format(page["on_npu"], tmp_path / "v.tar", options=ExportOptions(test_vectors=1))


@pytest.mark.parametrize("name", ["fast", "halves"])
def test_folders_of_c_and_of_objects_are_whole(page: dict[str, Any], name: str, tmp_path: Path) -> None:
    if name == "halves":
        add_halves(tmp_path)
    factory = mlfc.build(replace(page["module"], byoc=(name,)), "c", page["params"], module_name="m")
    for form, make in (("c", mlfc.archive.source_folder), ("o", mlfc.archive.object_files)):
        for path, data in make([factory]).items():
            (tmp_path / form / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / form / path).write_bytes(to_bytes(data))
        files = [path for path in sorted((tmp_path / form).rglob("*")) if path.suffix in (".c", ".o")]
        includes = [f"-I{tmp_path / form / 'include'}", "-shared", "-fPIC", "-Wl,--no-undefined"]
        command = [need("gcc", "gcc"), *includes, *files, "-lm", "-o", tmp_path / f"{form}.so"]
        subprocess.run(command, check=True)


def test_what_a_runtime_module_runs_has_no_c(page: dict[str, Any]) -> None:
    for make in (mlfc.archive.source_folder, mlfc.archive.object_files):
        with pytest.raises(OptionError, match=r"'npu', which generated code alone cannot call.*--emit mlf"):
            make([page["on_npu"]])


def test_an_unknown_generator_is_an_error(page: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="npu"):
        mlfc.build(replace(page["module"], byoc=("npx",)), "c", page["params"])


@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_c_of_ones_own_is_linked_with_objects_of_llvm(page: dict[str, Any], executor: str, tmp_path: Path) -> None:
    factory = mlfc.build(
        replace(page["module"], byoc=("fast",)), "llvm", page["params"], executor=executor, module_name="m"
    )
    np.testing.assert_array_equal(factory.runtime.run(IMAGE)["output"], np.maximum(-IMAGE, 0))
    mlfc.export_model_library_format(factory, tmp_path / "m.tar")
    np.testing.assert_array_equal(mlfc.load(tmp_path / "m.tar").run(IMAGE)["output"], np.maximum(-IMAGE, 0))


@pytest.mark.parametrize("name", ["fast", "npu"])
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_libraries_carry_what_generators_made(page: dict[str, Any], name: str, target: str, tmp_path: Path) -> None:
    factory = mlfc.build(
        replace(page["module"], byoc=(name,)), target, page["params"], executor="graph", module_name="m"
    )
    library = mlfc.load_module(factory.export_library(tmp_path / "m.so"))
    kinds = [module.type_key for module in library.walk()]
    assert kinds == ["GraphExecutorFactory", "library", *(["npu"] if name == "npu" else [])]
    executor = library["default"](mlfc.cpu(0))
    executor.set_input(0, IMAGE)
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0), np.abs(IMAGE) if name == "npu" else np.maximum(-IMAGE, 0))
