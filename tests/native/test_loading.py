"""Loading restores what was exported (factories, executors, imported modules) and links compatible objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.errors import ArchiveError, InputError, OptionError, RunError, ToolchainError
from mlfc.factory import Factory
from mlfc.library import build
from mlfc.library.toolchain import NATIVE, compile_objects
from mlfc.relay import ir
from mlfc.runtime import FactoryModule, GraphExecutor, Module, OnnxRuntimeModule, OpaqueModule, cpu
from mlfc.support.content import sha256_of
from mlfc.support.tar import open_tar, write_tar
from tests.harness import edge_inputs, module_of, seeded_inputs

pytestmark = pytest.mark.usefixtures("quick_builds")

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 16)).astype(np.float32)
WEIGHTS = RNG.standard_normal((8, 16)).astype(np.float32)


def two_layers(executor: str, name: str = "layers") -> Factory:
    def body(variables: dict[str, ir.Var]) -> ir.Expr:
        product = ir.call("nn.dense", [variables["x"], ir.Constant(WEIGHTS)], units=8)
        return ir.call("nn.relu", [product])

    return mlfc.build(module_of({"x": X}, {"y": body}), module_name=name, executor=executor)


def expected(x: Any) -> Any:
    return np.maximum(x.astype(np.float64) @ WEIGHTS.T.astype(np.float64), 0)


@pytest.fixture(scope="module", params=["aot", "graph"])
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def archive(executor: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mlfc.export_model_library_format(two_layers(executor), tmp_path_factory.mktemp("load") / "a.tar")


def rewritten(archive: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write an archive with changed members and a matching list of files."""
    with open_tar(archive) as tar:
        members = {name: tar.read(name, size) for name, size in tar.sizes.items()}
    change(members)
    document = json.loads(members.pop("metadata.json"))
    document["mlfc"]["files"] = {
        name: {"bytes": len(data), "sha256": sha256_of(data)} for name, data in members.items()
    }
    members["metadata.json"] = json.dumps(document, indent=2, sort_keys=True).encode()
    with target.open("wb") as file:
        write_tar(file, members, 0)
    return target


def test_both_executors_give_the_same_bits_of_a_real_model(models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    loaded = {}
    for kind in ("aot", "graph"):
        factory = mlfc.build(module, params=params, module_name="kws", executor=kind)
        loaded[kind] = mlfc.load(mlfc.export_model_library_format(factory, tmp_path / f"{kind}.tar"))
    ahead, graph = loaded["aot"], loaded["graph"]
    assert (ahead.inputs, ahead.outputs) == (graph.inputs, graph.outputs)
    for inputs in (seeded_inputs(ahead.inputs, 1), *edge_inputs(ahead.inputs)):
        (first,), (second,) = ahead.run(inputs).values(), graph.run(inputs).values()
        np.testing.assert_array_equal(first, second)


def test_a_loaded_factory_is_what_was_built(archive: Path, executor: str) -> None:
    built, loaded = two_layers(executor), mlfc.load_module(archive)
    assert isinstance(loaded, FactoryModule)
    assert loaded.type_key == {"aot": "AotExecutorFactory", "graph": "GraphExecutorFactory"}[executor]
    graph_json, lib, params = loaded
    assert graph_json == built.graph_json
    assert loaded.lib is lib
    assert lib.get_source() == built.lib.get_source()
    assert params.keys() == built.params.keys()
    for name, array in params.items():
        np.testing.assert_array_equal(array, built.params[name])
    assert loaded.get_function("get_graph_json")() == graph_json
    assert loaded.get_function("list_module_names")() == ["layers"]
    np.testing.assert_allclose(loaded.run(X)["y"], expected(X), rtol=1e-5)
    np.testing.assert_allclose(loaded.bind([X]).outputs["y"].shape, (4, 8))


@pytest.mark.parametrize("name", ["default", "layers"])
def test_executors_are_made_by_the_name(archive: Path, name: str) -> None:
    factory = mlfc.load_module(archive)
    first, second = factory[name](cpu(0)), factory[name]()
    first.set_input("x", X)
    second.run(x=-X)
    first.run()
    np.testing.assert_allclose(first.get_output(0), expected(X), rtol=1e-5)
    np.testing.assert_allclose(second.get_output(0, np.empty((4, 8), np.float32)), expected(-X), rtol=1e-5)
    np.testing.assert_array_equal(first.get_input(0), X)
    assert (first.get_num_outputs(), first.get_input_index("x"), first.get_input_index("z")) == (1, 0, -1)
    with pytest.raises(InputError, match="no such input"):
        first.set_input("z", X)
    with pytest.raises(RunError, match="runs on the CPU"):
        factory[name](mlfc.runtime.Device("cuda", 2))


def test_a_built_graph_runs_without_an_archive() -> None:
    graph_json, lib, params = two_layers("graph")
    assert lib.linked_params().keys() == params.keys()
    executor = GraphExecutor(graph_json, lib, cpu(0))
    executor.set_input("x", X)
    executor.run()
    np.testing.assert_allclose(executor.get_output(0), expected(X), rtol=1e-5)


def test_parameters_lie_in_the_archive(tmp_path: Path) -> None:
    archive = mlfc.export_model_library_format(two_layers("graph"), tmp_path / "a.tar")
    factory = mlfc.load_module(archive)
    for array in factory.params.values():
        assert not array.flags.writeable
    # deleting the file does not affect its memory map
    archive.unlink()
    np.testing.assert_allclose(factory.run(X)["y"], expected(X), rtol=1e-5)


def as_objects(folder: Path, machine: int | None = None, *, keep_sources: bool = True) -> Any:
    """Return a change that adds compiled objects, optionally marked as those of another machine."""

    def change(members: dict[str, bytes]) -> None:
        code = {name: data for name, data in members.items() if name.startswith("codegen/host/")}
        short = {name.removeprefix("codegen/host/"): data for name, data in code.items()}
        runtime = {f"runtime/{name}": data for name, data in build.runtime_files().items()}
        includes = ["src", "include", "runtime/include", "runtime/host"]
        objects = compile_objects(short | runtime, folder, (NATIVE,), includes=includes)
        for path in objects:
            if path.parent.name == "src" and "runtime" not in path.parts:
                data = bytearray(path.read_bytes())
                if machine is not None:
                    data[18:20] = machine.to_bytes(2, "little")
                members[f"codegen/host/lib/{path.name.removesuffix('.c.o')}.o"] = bytes(data)
        for name in code:
            if not keep_sources and name.startswith("codegen/host/src/"):
                del members[name]

    return change


def test_objects_of_this_machine_are_linked(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    change = as_objects(tmp_path / "o", keep_sources=False)
    linked = rewritten(archive, tmp_path / "objects.tar", change)
    np.testing.assert_allclose(mlfc.load(linked).run(X)["y"], expected(X), rtol=1e-5)


def test_objects_of_another_machine_need_the_c(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    arm = 40
    both = rewritten(archive, tmp_path / "both.tar", as_objects(tmp_path / "o", arm))
    np.testing.assert_allclose(mlfc.load(both).run(X)["y"], expected(X), rtol=1e-5)
    alone = rewritten(archive, tmp_path / "alone.tar", as_objects(tmp_path / "o", arm, keep_sources=False))
    with pytest.raises(ToolchainError, match=r"layers_lib0\.o: this object cannot be linked: it is for machine 40"):
        mlfc.load(alone).run(X)


def test_cpp_is_refused_by_name(archive: Path, tmp_path: Path) -> None:
    def change(members: dict[str, bytes]) -> None:
        members["codegen/host/src/layers_lib9.cc"] = b"class C {};"

    with pytest.raises(ToolchainError, match=r"layers_lib9\.cc: only C can be compiled here"):
        mlfc.load(rewritten(archive, tmp_path / "cpp.tar", change)).run(X)


def test_damage_is_found_before_anything_is_built(archive: Path, tmp_path: Path) -> None:
    data = bytearray(archive.read_bytes())
    at = data.index(b"int32_t tvmgen_layers")
    data[at + 2] ^= 1
    damaged = tmp_path / "damaged.tar"
    damaged.write_bytes(data)
    for load in (mlfc.load, mlfc.load_module):
        with pytest.raises(ArchiveError, match="SHA-256 differs"):
            load(damaged)


def test_missing_files_are_named(archive: Path, executor: str, tmp_path: Path) -> None:
    def without(text: str) -> Any:
        def change(members: dict[str, bytes]) -> None:
            for name in [name for name in members if text in name]:
                del members[name]

        return change

    with pytest.raises(ArchiveError, match="module 'layers' has no code"):
        mlfc.load(rewritten(archive, tmp_path / "a.tar", without("codegen/host/src")))
    lost = {"aot": "include/tvmgen_layers.h", "graph": ".graph"}[executor]
    with pytest.raises(ArchiveError, match=r"tvmgen_layers.h: the file is missing|module 'layers' has no graph"):
        mlfc.load(rewritten(archive, tmp_path / "b.tar", without(lost)))


def test_an_archive_of_functions_is_a_module_of_them(tmp_path: Path) -> None:
    source = b"""
#include <tvm/runtime/c_backend_api.h>
TVM_DLL int total(TVMValue *args, int *codes, int count, TVMValue *ret, int *ret_code, void *handle) {
  const DLTensor *in = args[0].v_handle, *out = args[1].v_handle;
  (void)codes; (void)count; (void)ret; (void)ret_code; (void)handle;
  for (int i = 0; i < 4; ++i) ((int32_t *)out->data)[0] += ((int32_t *)in->data)[i];
  return 0;
}
"""
    buffers = [
        {"size_bytes": size, "shape": shape, "dtype": "int32", "input_binding": None}
        for size, shape in ((16, [4]), (4, [1]))
    ]
    document = {
        "version": 7,
        "model_name": "default",
        "export_datetime": "2024-01-01 00:00:00Z",
        "memory": {"total": buffers},
        "target": ["c -keys=cpu "],
        "executors": [],
        "style": "operator",
    }
    archive = tmp_path / "op.tar"
    with archive.open("wb") as file:
        members = {"metadata.json": json.dumps(document).encode(), "codegen/host/src/lib0.c": source}
        write_tar(file, members, 0)
    module = mlfc.load_module(archive)
    out = np.zeros(1, np.int32)
    module["total"](np.array([1, 2, 3, 36], np.int32), out)
    assert (module.type_key, int(out[0])) == ("c", 42)
    with pytest.raises(OptionError, match=r"holds functions, not a model.*load_module"):
        mlfc.load(archive)


def doubling() -> bytes:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("a", "b")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "a"], ["b"])], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def test_modules_of_other_kinds_travel_with_their_tree(executor: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    factory = two_layers(executor)
    device = OnnxRuntimeModule(doubling(), "twice")
    device.import_module(OpaqueModule("neural-chip", b"\x01\x02", "elf"))
    factory.lib.import_module(device)
    factory.lib.import_module(OnnxRuntimeModule(doubling(), "again"))
    archive = mlfc.export_model_library_format(factory, tmp_path / "a.tar")
    loaded = mlfc.load_module(archive)
    first, second = loaded.lib.imported_modules
    np.testing.assert_array_equal(first["twice"](np.array([1, 2], np.float32))[0], [2, 4])
    function = loaded.lib.get_function("again", query_imports=True)
    np.testing.assert_array_equal(function(np.array([3, 4], np.float32))[0], [6, 8])
    assert second.save_to_bytes() == OnnxRuntimeModule(doubling(), "again").save_to_bytes()
    (chip,) = first.imported_modules
    assert (chip.type_key, chip.format, chip.save_to_bytes()) == ("neural-chip", "elf", b"\x01\x02")
    np.testing.assert_allclose(loaded.run(X)["y"], expected(X), rtol=1e-5)
    # the loaded modules are exported again unchanged
    other = two_layers(executor)
    for module in loaded.lib.imported_modules:
        other.lib.import_module(module)
    again = mlfc.export_model_library_format(other, tmp_path / "b.tar")
    assert again.read_bytes() == archive.read_bytes()


def test_a_module_that_two_import_comes_back_as_one(tmp_path: Path) -> None:
    factory = two_layers("aot")
    left, right = OpaqueModule("left", b"l"), OpaqueModule("right", b"r")
    below = OpaqueModule("below", b"b")
    below.import_module(OpaqueModule("bottom", b"d"))
    for module in (left, right):
        module.import_module(below)
        factory.lib.import_module(module)
    archive = mlfc.export_model_library_format(factory, tmp_path / "a.tar")
    one, two = mlfc.load_module(archive).lib.imported_modules
    assert one.imported_modules[0] is two.imported_modules[0]
    assert [module.type_key for module in one.walk()] == ["left", "below", "bottom"]
    names = [item["path"] for item in mlfc.inspect(archive)["files"]]
    assert [name for name in names if name.endswith("_mod0.bin")] == [
        f"codegen/{kind}/layers_mod0.bin" for kind in ("below", "bottom", "left", "right")
    ]
    assert mlfc.archive.validate(archive) == []


def test_functions_of_other_libraries_are_not_found(tmp_path: Path) -> None:
    factory = two_layers("graph")
    lib = factory.lib
    # a function of the C library, which the operators' library needs; a graph could contain its name
    assert not lib.implements_function("system")
    name = next(iter(factory.code.function_names.values()))
    assert lib.implements_function(name)
    with pytest.raises(RunError, match="lacks functions of the graph: system"):
        GraphExecutor(factory.graph_json.replace(f'"func_name": "{name}"', '"func_name": "system"'), lib, cpu(0))


def test_a_tree_that_lies_is_refused(tmp_path: Path) -> None:
    factory = two_layers("aot")
    factory.lib.import_module(OpaqueModule("neural-chip", b"\x01", "elf"))
    archive = mlfc.export_model_library_format(factory, tmp_path / "a.tar")

    def change(key: str, value: Any) -> Any:
        def apply(members: dict[str, bytes]) -> None:
            document = json.loads(members["metadata.json"])
            document["modules"]["layers"]["mlfc"]["module_tree"][1][key] = value
            members["metadata.json"] = json.dumps(document).encode()

        return apply

    for key, value in (("parent", 1), ("files", ["codegen/host/src/layers_lib0.c"]), ("files", [])):
        with pytest.raises(ArchiveError, match="module_tree"):
            mlfc.load(rewritten(archive, tmp_path / "b.tar", change(key, value)))


def test_several_modules_are_chosen_by_name(tmp_path: Path) -> None:
    factories = [two_layers("aot", "one"), two_layers("graph", "two")]
    archive = mlfc.export_model_library_format(factories, tmp_path / "a.tar")
    for name, kind in (("one", "AotExecutorFactory"), ("two", "GraphExecutorFactory")):
        assert mlfc.load_module(archive, name).type_key == kind
        np.testing.assert_allclose(mlfc.load(archive, name).run(X)["y"], expected(X), rtol=1e-5)
    with pytest.raises(OptionError, match=r"expected one module, got 2\. Name one of: one, two"):
        mlfc.load(archive)


def test_one_of_several_graphs_runs_without_the_code_of_the_others(tmp_path: Path) -> None:
    factories = [two_layers("graph", "one"), two_layers("graph", "two"), two_layers("aot", "three")]
    archive = mlfc.export_model_library_format(factories, tmp_path / "a.tar")
    for name in ("one", "two", "three"):
        np.testing.assert_allclose(mlfc.load(archive, name).run(X)["y"], expected(X), rtol=1e-5)


def test_a_library_of_operators_alone_is_no_model(tmp_path: Path) -> None:
    library = two_layers("graph").lib.export_library(tmp_path / "a.so")
    with pytest.raises(ArchiveError, match=r"a\.so: the graph and the parameters of '.*' are not in the library"):
        mlfc.load(library)


def test_a_shared_library_is_a_module(tmp_path: Path) -> None:
    library = mlfc.load_module(two_layers("aot").lib.export_library(tmp_path / "a.so"))
    assert isinstance(library, Module)
    assert (library.type_key, library.imported_modules) == ("library", ())
    np.testing.assert_allclose(library.run(X)["y"], expected(X), rtol=1e-5)
    assert not library.implements_function("nothing")
