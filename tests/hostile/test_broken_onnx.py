"""Damaged and hostile ONNX models: each raises an error of mlfc."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.errors import InternalError, MlfcError, ModelError, OptionError, UnsupportedError
from tests.onnx_models import model, single, small_network


def refused(data: Any, message: str, **options: Any) -> None:
    data = data if isinstance(data, (bytes, str, Path)) else data.SerializeToString()
    with pytest.raises(MlfcError, match=message) as found:
        mlfc.import_model(data, **options)
    assert not isinstance(found.value, InternalError)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.onnx", b"", "empty"),
        ("text.onnx", b"hello, this is no model", "not an ONNX model|no ONNX graph"),
        ("zeros.onnx", bytes(100), "not an ONNX model|no ONNX graph"),
        ("python", Path(sys.executable).read_bytes(), "expected a model, got .*machine code"),
        ("latin.relay", b'#[version = "0.0.5"]\n\xff', "UTF-8"),
    ],
)
def test_files_that_are_no_models(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refused(path, message)


def test_places_that_are_no_files(tmp_path: Path) -> None:
    refused(tmp_path / "missing.onnx", "file not found")
    refused(tmp_path, "folder")
    refused("a\0b", "cannot be read")
    refused("x" * 10_000, "cannot be read")


@pytest.mark.parametrize("name", ["a\0b", "n" * 70_000])
@pytest.mark.parametrize("kind", ["input", "weight", "output"])
def test_names_that_files_and_libraries_cannot_store(name: str, kind: str, tmp_path: Path) -> None:
    x, w, y = (name if kind == part else part for part in ("input", "weight", "output"))
    values = [onnx.helper.make_tensor_value_info(item, onnx.TensorProto.FLOAT, [4]) for item in (x, y)]
    weight = onnx.numpy_helper.from_array(np.ones(4, np.float32), w)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", [x, w], [y])], "g", values[:1], values[1:], [weight])
    (tmp_path / "m.onnx").write_bytes(onnx.helper.make_model(graph, ir_version=8).SerializeToString())
    module, params = mlfc.import_model(tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match=f"{kind} name of at most"):
        mlfc.build(module, "llvm", params)


def test_unknown_numerics() -> None:
    with pytest.raises(OptionError, match="'litert', 'tflm'"):
        mlfc.import_model(b"", numerics="exact")


def test_cycle() -> None:
    nodes = [helper.make_node("Relu", ["b"], ["a"]), helper.make_node("Relu", ["a"], ["b"], name="second")]
    refused(model(nodes, {"x": (1,)}, ["a"]), r"cycle: 'Relu #0', 'second'")


def test_tensor_that_nothing_produces() -> None:
    refused(
        model([helper.make_node("Add", ["x", "gone"], ["y"])], {"x": (1,)}, ["y"]), "'gone', which nothing produces"
    )
    refused(model([helper.make_node("Relu", ["x"], ["a"])], {"x": (1,)}, ["y"]), "nothing produces the output 'y'")


def test_tensor_made_twice() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])]
    refused(model(nodes, {"x": (1,)}, ["y"]), "'y' is computed twice")
    network = small_network()
    network.graph.input.append(network.graph.input[0])
    refused(network, "called 'x'")


def test_inputs_left_out_and_of_the_wrong_type() -> None:
    refused(model([helper.make_node("Add", ["x"], ["y"])], {"x": (1,)}, ["y"]), "requires input 1")
    refused(single("Add", (2,), inputs=[np.array([1], np.int8)]), "node 'n'")
    refused(single("Reshape", (2,), inputs=[np.array([1.5], np.float32)]), "dtype float32; expected int64")
    refused(single("Conv", (1, 2, 4, 4), inputs=[np.zeros((1, 3, 3, 3), np.float32)]), "input channels")


def test_attribute_of_the_wrong_type() -> None:
    refused(single("LeakyRelu", (2,), alpha="steep"), "'alpha' of LeakyRelu must be a float")
    refused(single("Transpose", (2, 2), perm=1), "must be a list of integers")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw_data": b"\0" * 3}, "holds 3 bytes"),
        ({"dims": [1 << 40, 1 << 40]}, "needs"),
        ({"dims": [-4]}, "not the shape"),
        ({"data_type": 99}, "unknown element type"),
        ({"data_type": TensorProto.STRING}, "STRING is not supported"),
    ],
)
def test_weights_that_do_not_fit_their_shape(change: dict[str, Any], message: str) -> None:
    network = small_network()
    weight = network.graph.initializer[0]
    for name, value in change.items():
        if name == "dims":
            del weight.dims[:]
            weight.dims.extend(value)
        else:
            setattr(weight, name, value)
    refused(network, message)


@pytest.mark.parametrize(
    ("operator", "shape", "constants"),
    [
        ("Expand", (1,), [np.array([1 << 40, 1 << 20])]),
        ("Tile", (4,), [np.array([1 << 50])]),
        ("Pad", (4,), [np.array([1 << 50, 1 << 50])]),
    ],
)
def test_huge_results_are_refused(operator: str, shape: tuple[int, ...], constants: list[Any]) -> None:
    refused(single(operator, shape, inputs=constants), "too large")


def test_huge_constants_are_refused() -> None:
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"])
    refused(model([node], {"x": (1,)}, ["y"], {"shape": np.array([1 << 40])}), "too large")
    node = helper.make_node("Range", ["zero", "limit", "one"], ["y"])
    weights = {"zero": np.array(0), "limit": np.array(1 << 60), "one": np.array(1)}
    refused(model([node], {"x": (1,)}, ["y"], weights), "too large")


def external(network: onnx.ModelProto, location: str, length: int | None = None) -> onnx.ModelProto:
    weight = network.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    if length is not None:
        weight.external_data.add(key="length", value=str(length))
    return network


def test_external_data_comes_from_the_models_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    plain = small_network()
    (folder / "w.bin").write_bytes(plain.graph.initializer[0].raw_data)
    (tmp_path / "outside.bin").write_bytes(plain.graph.initializer[0].raw_data)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    path = folder / "m.onnx"
    expected = mlfc.import_model(plain.SerializeToString())[1]["w"]
    path.write_bytes(external(small_network(), "w.bin").SerializeToString())
    np.testing.assert_array_equal(mlfc.import_model(path)[1]["w"], expected)
    for location, message in (
        ("../outside.bin", "outside the model's folder"),
        (str(tmp_path / "outside.bin"), "outside the model's folder"),
        ("link.bin", "outside the model's folder"),
        ("gone.bin", "is missing"),
        ("", "is missing"),
    ):
        path.write_bytes(external(small_network(), location).SerializeToString())
        refused(path, message)
    path.write_bytes(external(small_network(), "w.bin", 1 << 40).SerializeToString())
    refused(path, "its shape")
    refused(external(small_network(), "w.bin"), "without the model's folder")


def test_mutated_models_never_give_foreign_errors() -> None:
    """Check that truncated files and flipped bytes either import or raise an error of mlfc."""
    data = bytearray(small_network().SerializeToString())
    rng = np.random.default_rng(1)
    failures = 0
    for round_number in range(400):
        mutated = bytearray(data)
        if round_number % 4 == 0:
            del mutated[int(rng.integers(len(data))) :]
        for _ in range(int(rng.integers(1, 5))):
            if mutated:
                mutated[int(rng.integers(len(mutated)))] = int(rng.integers(256))
        try:
            mlfc.import_model(bytes(mutated))
        except InternalError:
            raise
        except MlfcError:
            failures += 1
    assert failures > 100


def test_names_that_are_no_utf8() -> None:
    data = small_network().SerializeToString().replace(b"product", b"prod\xff\xfet")
    with pytest.raises(ModelError):
        mlfc.import_model(data)
