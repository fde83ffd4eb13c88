"""Archives recompile to the same bytes for the same target, and for another one to those of the model."""

from __future__ import annotations

import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import mlfc
from mlfc.archive.read import source
from mlfc.archive.read.opening import open_archive
from mlfc.archive.read.source import read_source, source_files
from mlfc.archive.write.options import ExportOptions
from mlfc.archive.write.rebuild import rebuild, recorded_options
from mlfc.errors import ArchiveError, OptionError, TextError
from mlfc.factory import Factory
from mlfc.relay import ir
from mlfc.relay.text import from_text
from mlfc.support.content import sha256_of, to_bytes
from mlfc.support.params import load_params, params_content
from mlfc.support.tar import write_tar
from tests import onnx_models
from tests.tflite_builder import Op, T
from tests.tflite_builder import build as tflite_model

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
# one of each kind of arithmetic and graph: dense layers, convolutions in int8 and float32, skip connections
REAL = ("ad01_int8", "kws_ref_model", "kws_ref_model_float32", "pretrainedResnet_quant")
MEMBER = "src/tiny.relay"


def exported(factories: Factory | list[Factory], path: Path) -> bytes:
    return Path(mlfc.export_model_library_format(factories, path)).read_bytes()


def built(model: str | Path | bytes, target: str = "c", name: str = "tiny", **options: str | bool) -> Factory:
    module, params = mlfc.import_model(model, name=name)
    return mlfc.build(module, target=target, params=params, module_name=name, **options)


def small() -> Factory:
    return built(onnx_models.small_network().SerializeToString())


def assert_same_again(make: Callable[[str], Factory], folder: Path) -> bytes:
    old = folder / "old.tar"
    original = exported(make("c"), old)
    assert exported(rebuild(old), folder / "again.tar") == original
    return original


def assert_rebuilds(make: Callable[[str], Factory], folder: Path) -> None:
    original = assert_same_again(make, folder)
    old = folder / "old.tar"
    target = "c -mcpu=cortex-m4"
    other = exported(rebuild(old, target), folder / "other.tar")
    assert other == exported(make(target), folder / "direct.tar")
    assert other != original


@pytest.mark.parametrize("name", REAL)
def test_real_models_rebuild(models: Path, tmp_path: Path, name: str) -> None:
    # reading does not depend on the target, so only one model and the examples are compiled for another
    check = assert_rebuilds if name == "kws_ref_model" else assert_same_again
    check(lambda target: built(models / f"{name}.tflite", target, name), tmp_path)


@pytest.mark.parametrize("name", ["digits.onnx", "digits_int8.tflite"])
def test_the_examples_rebuild(tmp_path: Path, name: str) -> None:
    assert_rebuilds(lambda target: built(DIGITS / name, target, "digits"), tmp_path)


def test_convolutions_of_onnx_rebuild(tmp_path: Path) -> None:
    model = onnx_models.small_network().SerializeToString()
    assert_rebuilds(lambda target: built(model, target), tmp_path)


def test_convolutions_in_uint8_rebuild(tmp_path: Path) -> None:
    window = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}
    rng = np.random.default_rng(0)
    tensors = [
        T("x", (1, 5, 5, 3), "uint8", scale=0.1, zero=120),
        T("w", (4, 3, 3, 3), "uint8", rng.integers(0, 256, (4, 3, 3, 3)), 0.02, 131),
        T("b", (4,), "int32", rng.integers(-900, 900, 4), 0.1 * 0.02),
        T("y", (1, 5, 5, 4), "uint8", scale=0.3, zero=7),
    ]
    model = tflite_model(tensors, [Op("CONV_2D", ["x", "w", "b"], ["y"], "Conv2DOptions", window)], ["x"], ["y"])
    assert_rebuilds(lambda target: built(model, target), tmp_path)


def test_large_constants_of_a_module_travel_beside_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_SECTION_LIMIT", 64 << 10)

    def make(target: str) -> Factory:
        x = ir.Var("x", ir.TensorType((1, 256), "float32"))
        table = ir.const(np.random.default_rng(0).standard_normal((300, 256)).astype(np.float32), name="table:0")
        small_one = ir.const(np.arange(300, dtype=np.float32), name="b")
        body = ir.call("nn.bias_add", [ir.call("nn.dense", [x, table], units=300), small_one])
        return mlfc.build(ir.IRModule({"main": ir.Function((x,), body)}), target=target, module_name="tiny")

    files = source_files(make("c"))
    text = to_bytes(files[MEMBER]).decode()
    assert "#[metadata]" not in text
    assert {name: array.shape for name, array in load_params(to_bytes(files["src/tiny.params"])).items()} == {
        "meta[relay.Constant][0]": (300, 256),
        "meta[relay.Constant][1]": (300,),
    }
    assert_rebuilds(make, tmp_path)
    alone = source_files(make("c"), params=False)
    assert list(alone) == [MEMBER]
    assert from_text(to_bytes(alone[MEMBER]).decode()).main.body.type == ir.TensorType((1, 300), "float32")


def test_a_weight_may_have_the_name_of_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_SECTION_LIMIT", 0)

    def make(target: str) -> Factory:
        x, weight = (ir.Var(name, ir.TensorType((2,), "float32")) for name in ("x", "meta[relay.Constant][0]"))
        body = ir.call("add", [ir.call("multiply", [x, weight]), ir.const(np.float32([1, 2]))])
        params = {weight.name: np.float32([3, 4])}
        module = ir.IRModule({"main": ir.Function((x, weight), body)})
        return mlfc.build(module, target=target, params=params, module_name="tiny")

    assert_rebuilds(make, tmp_path)


def test_weights_have_the_names_of_the_variables_in_the_text(tmp_path: Path) -> None:
    names = ("layer.0/w:0", "layer_0_w_0", "w")
    nodes = [helper.make_node("Sum", ["x:0", *names], ["y.1"])]
    weights = {name: np.float32([index, 1]) for index, name in enumerate(names)}
    factory = built(onnx_models.model(nodes, {"x:0": (2,)}, ["y.1"], weights).SerializeToString())
    original = exported(factory, tmp_path / "new.tar")
    files = {name: to_bytes(data) for name, data in source_files(factory).items()}
    params = load_params(files["src/tiny.params"])
    assert {name: array.tolist() for name, array in params.items()} == {
        "layer_0_w_01": [0, 1], "layer_0_w_0": [1, 1], "w": [2, 1]
    }  # fmt: skip
    # TVM binds by the names of variables
    assert {*params} <= {*re.findall(r"%(\w+):", files[MEMBER].decode())}
    assert mlfc.build(from_text(files[MEMBER].decode()), params=params, module_name="tiny").lib.get_source() == (
        factory.lib.get_source()
    )
    assert exported(rebuild(tmp_path / "new.tar"), tmp_path / "again.tar") == original
    # earlier versions stored them under the names in the model
    with tarfile.open(tmp_path / "new.tar") as tar:
        members = {item.name[2:]: tar.extractfile(item).read() for item in tar if item.isfile()}  # type: ignore[union-attr]
    members["src/tiny.params"] = data = to_bytes(params_content(weights))
    document = json.loads(members["metadata.json"])
    document["mlfc"]["files"]["src/tiny.params"] = {"bytes": len(data), "sha256": sha256_of(data)}
    members["metadata.json"] = json.dumps(document).encode()
    with (tmp_path / "old.tar").open("wb") as file:
        write_tar(file, members, 0)
    assert exported(rebuild(tmp_path / "old.tar"), tmp_path / "migrated.tar") == original


def test_text_and_weights_are_what_the_public_functions_read() -> None:
    factory = small()
    files = source_files(factory)
    module = from_text(to_bytes(files[MEMBER]).decode())
    params = load_params(to_bytes(files["src/tiny.params"]))
    again = mlfc.build(module, params=params, module_name="tiny")
    assert again.lib.get_source() == factory.lib.get_source()
    assert [param.name for param in module.main.params] == [param.name for param in factory.module.main.params]


def test_every_module_of_an_archive_with_its_own_options_rebuilds(models: Path, tmp_path: Path) -> None:
    factories = [
        built(models / "hello_world_int8.tflite", "c -mcpu=cortex-m4", "hello", optimize="size"),
        small(),
        built(models / "hello_world_int8.tflite", name="graph", executor="graph"),
        built(models / "hello_world_int8.tflite", name="outside", external_workspace=True),
    ]
    original = exported(factories, tmp_path / "old.tar")
    again = rebuild(tmp_path / "old.tar")
    assert sorted(factory.module_name for factory in again) == ["graph", "hello", "outside", "tiny"]
    assert exported(again, tmp_path / "again.tar") == original
    turned = rebuild(tmp_path / "old.tar", executor="graph")
    assert {factory.executor for factory in turned} == {"graph"}
    with pytest.raises(OptionError, match="unknown executor"):
        rebuild(tmp_path / "old.tar", executor="jit")


@pytest.mark.parametrize("form", [{"format_version": 5}, {"format_version": 6}, {"rfc": True}])
def test_archives_of_other_forms_rebuild(tmp_path: Path, form: dict[str, int | bool]) -> None:
    old = mlfc.export_model_library_format(small(), tmp_path / "old.tar", options=ExportOptions(**form))
    assert exported(rebuild(old), tmp_path / "again.tar") == exported(small(), tmp_path / "direct.tar")


def test_a_compressed_archive_rebuilds(tmp_path: Path) -> None:
    original = exported(small(), tmp_path / "old.tar")
    (tmp_path / "old.tar.xz").write_bytes(lzma.compress(original))
    assert exported(rebuild(tmp_path / "old.tar.xz"), tmp_path / "again.tar") == original


def test_the_rounding_that_the_import_chose_stays(models: Path, tmp_path: Path) -> None:
    module, params = mlfc.import_model(models / "kws_ref_model.tflite", numerics="tflm")
    factory = mlfc.build(module, params=params, module_name="tiny")
    original = exported(factory, tmp_path / "old.tar")
    assert exported(rebuild(tmp_path / "old.tar"), tmp_path / "again.tar") == original


def test_the_weights_lie_in_the_archive(models: Path, tmp_path: Path) -> None:
    model = models / "hello_world_int8.tflite"
    exported(built(model), tmp_path / "old.tar")
    with open_archive(tmp_path / "old.tar") as archive:
        module, params = read_source(archive, "tiny")
    expected_module, expected = mlfc.import_model(model, name="tiny")
    assert params.keys() == expected.keys()
    for name, array in params.items():
        np.testing.assert_array_equal(array, expected[name])
        assert not array.flags.writeable
    assert module.quantization == expected_module.quantization
    assert module.source == expected_module.source


def changed(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Rewrite the archive with changed members."""
    with tarfile.open(path) as old:
        files = {info.name[2:]: old.extractfile(info).read() for info in old if info.isreg()}  # type: ignore[union-attr]
    change(files)
    out = io.BytesIO()
    write_tar(out, files, 0)
    path.write_bytes(out.getvalue())
    return path


def test_an_archive_without_weights_says_so(tmp_path: Path) -> None:
    path = Path(mlfc.export_model_library_format(small(), tmp_path / "old.tar", source_params=False))
    with pytest.raises(ArchiveError, match=r"exported without its weights: src/tiny\.params is missing"):
        rebuild(path)


@pytest.mark.parametrize("member", [MEMBER, "src/tiny.params"])
def test_a_source_that_was_taken_out_is_named(tmp_path: Path, member: str) -> None:
    path = tmp_path / "old.tar"
    exported(small(), path)
    changed(path, lambda files: files.pop(member))
    with pytest.raises(ArchiveError, match=f"{member}: the file is missing"):
        rebuild(path)


@pytest.mark.parametrize("member", [MEMBER, "src/tiny.params"])
def test_a_changed_source_is_refused(tmp_path: Path, member: str) -> None:
    path = tmp_path / "old.tar"
    exported(small(), path)
    changed(path, lambda files: files.update({member: files[member][:-1] + bytes([files[member][-1] ^ 1])}))
    with pytest.raises((ArchiveError, TextError), match="SHA-256 differs"):
        rebuild(path)


@pytest.mark.parametrize(
    "options",
    [
        ExportOptions(runtime=False),
        ExportOptions(share_workspace=True),
        ExportOptions(share_weights=True),
        ExportOptions(share_workspace=True, share_weights=True, seed=3),
    ],
)
def test_the_options_of_an_export_are_told(models: Path, tmp_path: Path, options: ExportOptions) -> None:
    old, again = tmp_path / "old.tar", tmp_path / "again.tar"
    model = models / "hello_world_int8.tflite"
    mlfc.export_model_library_format([built(model, name="a"), built(model, name="b")], old, options=options)
    assert recorded_options(old) == options
    mlfc.export_model_library_format(rebuild(old), again, options=recorded_options(old))
    assert again.read_bytes() == old.read_bytes()


def test_an_archive_is_not_taken_for_a_damaged_model(tmp_path: Path) -> None:
    exported(small(), tmp_path / "a.tar")
    (problem,) = mlfc.check(tmp_path / "a.tar")
    assert "expected a model, got an archive or a tar of objects" in str(problem)


def test_relay_text_is_read_by_a_process_that_has_compiled_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tiny.relay"
    path.write_bytes(to_bytes(source_files(small())[MEMBER]))
    code = f"import mlfc; print(*mlfc.import_model({str(path)!r})[0].output_names)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "y\n"


def test_a_scale_without_a_value_is_not_told(tmp_path: Path) -> None:
    pair = ["s", "z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *pair], ["q"]),
        helper.make_node("DequantizeLinear", ["q", *pair], ["d"]),
        helper.make_node("Relu", ["d"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", *pair], ["y"]),
    ]
    weights = {"s": np.array(np.inf, np.float32), "z": np.array(0, np.int8)}
    model = onnx_models.model(nodes, {"x": (1, 4)}, ["y"], weights).SerializeToString()
    assert mlfc.import_model(model)[0].quantization == {}
    assert_rebuilds(lambda target: built(model, target), tmp_path)
