"""Inputs known at compile time become constants, and their consumers are folded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlfc
from mlfc.cli.options import parse_values
from mlfc.errors import InputError, MlfcError, OptionError
from mlfc.frontend.common import frozen_input
from mlfc.relay.ir import tensor_type

SCALED = """#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3), float32], %scale: Tensor[(3), float32]) {
  multiply(%x, %scale)
}
"""


@pytest.fixture
def reshaped(tmp_path: Path) -> Path:
    """Return a model that requires the value of one input, and accepts that of another."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["y"], name="to shape"),
        helper.make_node("Mul", ["y", "gain"], ["z"], name="louder"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
        helper.make_tensor_value_info("gain", TensorProto.FLOAT, []),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    path = tmp_path / "reshaped.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.mark.parametrize(
    ("value", "dtype", "extents", "expected"),
    [
        (7, "int64", (), np.int64(7)),
        (7, "int64", (1,), np.array([7])),
        (0.5, "float32", (2, 2), np.full((2, 2), 0.5, np.float32)),
        ([1, 2, 3, 4], "int8", (2, 2), np.array([[1, 2], [3, 4]], np.int8)),
        ([[1, 2]], "uint8", (None, 2), np.array([[1, 2]], np.uint8)),
        ([[1, 2]], "float16", None, np.array([[1, 2]], np.float16)),
        (True, "bool", (), np.bool_(True)),
        (1, "bool", (), np.bool_(True)),
        (1.0, "int32", (), np.int32(1)),
        (0.1, "float32", (), np.float32(0.1)),
        (float("nan"), "float32", (), np.float32("nan")),
        (1.5, "bfloat16", (), None),
    ],
)
def test_values_take_the_dtype_and_shape_of_the_input(
    value: Any, dtype: str, extents: tuple[int | None, ...] | None, expected: Any
) -> None:
    found = frozen_input(value, "x", dtype, extents)
    assert str(found.dtype) == dtype
    np.testing.assert_array_equal(found, found if expected is None else expected)


@pytest.mark.parametrize(
    ("value", "dtype", "extents", "message"),
    [
        (300, "uint8", (), "expected values of uint8, got 300"),
        (-1, "uint8", (), "got -1"),
        (0.5, "int32", (), "expected values of int32, got 0.5"),
        (float("nan"), "int32", (), "got nan"),
        (1e300, "float32", (), r"expected values of float32, got 1e\+300"),
        (2, "bool", (), "expected values of bool, got 2"),
        (1 << 62, "float32", (), None),
        ((1 << 62) + 1, "float32", (), f"got {(1 << 62) + 1}"),
        ([1, 2, 3], "int8", (2, 2), r"expected the shape \(2, 2\), got \(3,\)"),
        ([[1, 2]], "int8", (2,), r"expected the shape \(2,\), got \(1, 2\)"),
        (1, "int8", (None, 2), r"expected the shape \(\?, 2\), got \(\). Give the input's shape, too: --shape x="),
        ([[1, 2, 3]], "int8", (None, 2), r"expected the shape \(\?, 2\), got \(1, 3\)"),
        (1, "int8", (1 << 20, 1 << 20), "expected the shape"),
        ("text", "int8", (), "expected numbers"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    value: Any, dtype: str, extents: tuple[int | None, ...], message: str | None
) -> None:
    if message is None:
        frozen_input(value, "x", dtype, extents)
    else:
        with pytest.raises(OptionError, match=message):
            frozen_input(value, "x", dtype, extents)


def test_a_frozen_input_is_a_constant(reshaped: Path) -> None:
    given = {"shapes": {"x": (2, 6)}, "values": {"shape": [3, 4], "gain": 2}}
    model = mlfc.compile(reshaped, "llvm", **given)
    assert [info.name for info in model.inputs] == ["x"]
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(model.model.run({"x": x})["z"], 2 * x.reshape(3, 4))
    assert model.verify(samples=1).is_within
    assert mlfc.check(reshaped, **given) == []


def test_values_give_names_of_dimensions_their_sizes(reshaped: Path) -> None:
    module, _ = mlfc.import_model(reshaped, values={"x": np.zeros((4, 6)), "shape": [8, 3]})
    assert module.output_names == ("z",)
    assert tensor_type(module.main.body).shape == (8, 3)
    assert module.frozen["x"].shape == (4, 6)


def test_the_refusal_of_an_input_that_must_be_known_says_how_to_give_it(reshaped: Path) -> None:
    with pytest.raises(MlfcError, match=r"'to shape'.*value at compile time: for example --value shape=2,6"):
        mlfc.import_model(reshaped, shapes={"x": (2, 6)})


@pytest.mark.parametrize("values", [{"gian": 1}, {"y": 1}])
def test_unknown_inputs_are_refused(reshaped: Path, values: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="unknown input"):
        mlfc.import_model(reshaped, values=values)


def test_tflite_inputs_can_be_frozen(models: Path) -> None:
    kws = models / "kws_ref_model.tflite"
    info = mlfc.compile(kws, "llvm", dry_run=True).inputs[0]
    ones = np.ones(info.shape, np.int8)
    module, params = mlfc.import_model(kws, values={info.name: 1})
    assert [param.name for param in module.main.params if param.name not in params] == []
    np.testing.assert_array_equal(module.frozen[info.name], ones)
    with pytest.raises(MlfcError, match="expected values of int8, got 200"):
        mlfc.import_model(kws, values={info.name: 200})
    with pytest.raises(MlfcError, match="unknown input 'other'"):
        mlfc.import_model(kws, values={"other": 1})


def test_inputs_of_relay_text_can_be_frozen() -> None:
    model = mlfc.compile(SCALED.encode(), "llvm", values={"scale": [1, 2, 3]})
    assert [info.name for info in model.inputs] == ["x"]
    found = model.model.run({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(next(iter(found.values())), [[1, 2, 3], [1, 2, 3]])
    with pytest.raises(OptionError, match="unknown input 'sacle'"):
        mlfc.compile(SCALED.encode(), values={"sacle": 1})


def test_options_read_as_numbers_and_files(tmp_path: Path) -> None:
    mask = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.save(tmp_path / "mask.npy", mask)
    found = parse_values(["sr=16000", "a=b=1,-2", "x=.5,1e-3,inf", "on=true", f"mask={tmp_path / 'mask.npy'}"])
    assert {name: value.tolist() for name, value in found.items()} == {
        "sr": 16000, "a=b": [1, -2], "x": [0.5, 1e-3, float("inf")], "on": True, "mask": mask.tolist(),
    }  # fmt: skip


@pytest.mark.parametrize("text", ["sr", "sr=", "=1", "sr=1,,2", "sr=one", "sr=0x10", "sr=1_000", f"sr={'9' * 50}"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"expected NAME=NUMBERS or NAME=FILE\.npy"):
        parse_values([text])


def test_a_value_given_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="specified twice"):
        parse_values(["sr=1", "sr=2"])


def test_files_of_other_things_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "text.npy", np.array(["text"]))
    (tmp_path / "short.npy").write_bytes((tmp_path / "text.npy").read_bytes()[:90])
    for name, message in (("text.npy", "expected numbers"), ("short.npy", "cannot be read"), ("no.npy", "cannot be")):
        with pytest.raises(InputError, match=message):
            parse_values([f"x={tmp_path / name}"])


def test_command_line(command: Callable[..., str], reshaped: Path, tmp_path: Path) -> None:
    given = ("--shape", "x=2,6", "--value", "shape=3,4", "--value", "gain=2.5")
    assert "no problems" in command("check", reshaped, *given)
    archive = tmp_path / "reshaped.tar"
    command("compile", reshaped, *given, "-o", archive)
    assert [item["name"] for item in mlfc.inspect(archive)["modules"]["reshaped"]["inputs"]] == ["x"]
    assert "equal" in command("verify", reshaped, archive, "--samples", "1", *given[2:])


def test_verify_says_which_value_to_repeat(reshaped: Path, tmp_path: Path) -> None:
    model = mlfc.compile(reshaped, shapes={"x": (2, 6)}, values={"shape": [3, 4], "gain": 2})
    archive = model.export(tmp_path / "reshaped.tar")
    with pytest.raises(MlfcError, match=r"no input 'gain'.*Set the value that it was compiled with: --value gain="):
        mlfc.verify(reshaped, archive)
