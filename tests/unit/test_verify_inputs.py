"""User-provided inputs and labels: every file format, several sets, accuracy, and invalid input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from mlfc.cli.main import app
from mlfc.errors import InputError, MlfcError, ProblemsError
from mlfc.frontend import import_for_run
from mlfc.options import ImportOptions
from mlfc.runtime import TensorInfo
from mlfc.verify import verify
from mlfc.verify.inputs import index_ends, read_labels, read_sets

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
ONE = (TensorInfo("x", (1, 2, 3), "float32"),)
TWO = (*ONE, TensorInfo("n", (2,), "int64"))


def values(sets: int) -> Any:
    return np.arange(sets * 6, dtype=np.float32).reshape(sets, 2, 3)


def test_one_set_or_many_lie_along_a_leading_axis(tmp_path: Path) -> None:
    forms = {
        "one": values(1),
        "many": values(3),
        "more axes": values(3)[:, None],
        "fortran": np.asfortranarray(values(3)),
    }
    for name, array in forms.items():
        np.save(tmp_path / "x.npy", array)
        np.savez(tmp_path / "x.npz", array)
        (tmp_path / "x.bin").write_bytes(np.ascontiguousarray(array).tobytes())
        for path in (tmp_path / "x.npy", tmp_path / "x.npz", tmp_path / "x.bin"):
            found = read_sets(path, ONE)
            assert [title for title, _ in found] == [f"set {index}" for index in range(len(array))], name
            for index, (_, inputs) in enumerate(found):
                np.testing.assert_array_equal(inputs["x"], array[index].reshape(1, 2, 3))


def test_several_inputs_come_by_name_or_in_order(tmp_path: Path) -> None:
    numbers = np.arange(4, dtype=np.int64).reshape(2, 2)
    np.savez(tmp_path / "a.npz", n=numbers, x=values(2))
    raw = b"".join(values(2)[index].tobytes() + numbers[index].tobytes() for index in range(2))
    (tmp_path / "a.raw").write_bytes(raw)
    for name in ("a.npz", "a.raw"):
        found = read_sets(tmp_path / name, TWO)
        assert len(found) == 2
        np.testing.assert_array_equal(found[1][1]["n"], [2, 3])
        np.testing.assert_array_equal(found[1][1]["x"], values(2)[1:])


def wrong_dtype(path: Path) -> Path:
    np.save(path.with_suffix(".npy"), values(2).astype(np.float64))
    return path.with_suffix(".npy")


def wrong_shape(path: Path) -> Path:
    np.save(path.with_suffix(".npy"), values(2)[:, :, :2])
    return path.with_suffix(".npy")


def pickled(path: Path) -> Path:
    np.save(path.with_suffix(".npy"), np.array([{}], object), allow_pickle=True)
    return path.with_suffix(".npy")


def no_npy(path: Path) -> Path:
    path.with_suffix(".npy").write_bytes(b"not an array")
    return path.with_suffix(".npy")


def half_a_set(path: Path) -> Path:
    path.with_suffix(".bin").write_bytes(bytes(36))
    return path.with_suffix(".bin")


def nothing(path: Path) -> Path:
    return path.with_suffix(".bin")


def none_of_many(path: Path) -> Path:
    np.save(path.with_suffix(".npy"), values(2)[:0])
    return path.with_suffix(".npy")


FAULTS = {
    wrong_dtype: "float64, not float32", wrong_shape: r"\(2, 2, 2\), not \(1, 2, 3\)", pickled: "dtype",
    no_npy: "cannot be read as .npy", half_a_set: "expected a multiple of 24 bytes.*got 36", nothing: "cannot be read",
    none_of_many: "its shape is",
}  # fmt: skip


@pytest.mark.parametrize("make", FAULTS)
def test_inputs_that_do_not_fit_are_refused(tmp_path: Path, make: Any) -> None:
    with pytest.raises((InputError, ProblemsError), match=FAULTS[make]):
        read_sets(make(tmp_path / "x"), ONE)


def test_as_many_sets_of_each_input(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", n=np.zeros((3, 2), np.int64), x=values(2))
    with pytest.raises(InputError, match="x: 2, n: 3"):
        read_sets(tmp_path / "a.npz", TWO)
    np.save(tmp_path / "a.npy", values(2))
    with pytest.raises(InputError, match="2 inputs"):
        read_sets(tmp_path / "a.npy", TWO)


def test_labels_are_an_array_or_text(tmp_path: Path) -> None:
    np.save(tmp_path / "l.npy", np.array([3, 1, 2], np.uint8))
    (tmp_path / "l.txt").write_text("3\n1\n 2\n")
    for name in ("l.npy", "l.txt"):
        np.testing.assert_array_equal(read_labels(tmp_path / name, 3), [3, 1, 2])
        with pytest.raises(InputError, match="expected 4 integers"):
            read_labels(tmp_path / name, 4)
    (tmp_path / "l.txt").write_text("3\n1.5\n")
    with pytest.raises(InputError, match="integer labels"):
        read_labels(tmp_path / "l.txt", 2)


def test_accuracy_is_that_of_the_compiled_model_and_of_the_reference(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    images = np.random.default_rng(0).random((6, 1, 1, 8, 8)).astype(np.float32)
    session = __import__("onnxruntime").InferenceSession(DIGITS)
    name, shape = session.get_inputs()[0].name, session.get_inputs()[0].shape
    images = images.reshape(6, *shape[1:])
    answers = [int(session.run(None, {name: image[None]})[0].argmax()) for image in images]
    np.save(tmp_path / "images.npy", images)
    labels = [*answers[:4], *((answer + 1) % 10 for answer in answers[4:])]
    (tmp_path / "labels.txt").write_text("\n".join(map(str, labels)))
    found = verify(DIGITS, inputs=tmp_path / "images.npy", labels=tmp_path / "labels.txt")
    assert found.samples == 6
    assert found.accuracy is not None
    assert (found.accuracy.compiled, found.accuracy.reference, found.accuracy.agreeing) == (4, 4, 6)
    options = ["--inputs", str(tmp_path / "images.npy"), "--labels", str(tmp_path / "labels.txt")]
    printed = CliRunner().invoke(app, ["verify", str(DIGITS), *options])
    assert printed.exit_code == 0
    assert re.search(r"4 of 6 right, ONNX Runtime 4; same answer in 6", printed.stdout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "l.txt"}, "--labels requires --inputs"),
        ({"rtol": -1.0}, "expected a number"),
        ({"atol": np.nan}, "nan"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MlfcError, match=message):
        verify(DIGITS, **options)


def saved_graph(
    path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[int | str]]], **tables: Any
) -> Path:
    """Write a model with one output ``y``."""
    given = [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(value, name) for name, value in tables.items()]
    graph = helper.make_graph(nodes, "g", given, [output], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_places_that_are_made_up_are_inside_of_their_tables(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'mlfc[verify]'")
    nodes = [
        helper.make_node("Unsqueeze", ["kinds", "axis"], ["k"]),
        helper.make_node("Gather", ["small", "k"], ["p"]),
        helper.make_node("Gather", ["large", "words"], ["q"]),
        helper.make_node("Add", ["p", "q"], ["sum"]),
        helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["kept", "one"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "huge"], ["below"]),
        helper.make_node("Add", ["sum", "below"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=1),
    ]
    # a mask of 2 makes the scores infinite
    tables = {
        "one": np.array(1, np.float32),
        "huge": np.array(3e38, np.float32),
        "small": np.eye(2, dtype=np.float32),
        "large": np.ones((20, 2), np.float32),
        "axis": np.array([0]),
    }
    words: tuple[int, list[int | str]] = (TensorProto.INT64, ["n"])
    mask: tuple[int, list[int | str]] = (TensorProto.INT64, [1, "n", 1])
    path = saved_graph(tmp_path / "m.onnx", nodes, {"kinds": words, "words": words, "attention_mask": mask}, **tables)
    module, _ = import_for_run(path, ImportOptions(dynamic=True))
    assert index_ends(module) == {"kinds": 2, "words": 20, "attention_mask": 2}
    result = verify(path)
    assert (result.is_within, result.samples) == (True, 13)


def test_inputs_compared_with_positions_index_tables(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["column"]),
        helper.make_node("Equal", ["column", "positions"], ["found"]),
        helper.make_node("Cast", ["found"], ["y"], to=TensorProto.FLOAT),
    ]
    tables = {"axis": np.array([1]), "positions": np.arange(257, dtype=np.int32)}
    path = saved_graph(tmp_path / "m.onnx", nodes, {"x": (TensorProto.INT32, ["n"])}, **tables)
    module, params = import_for_run(path, ImportOptions(dynamic=True))
    assert index_ends(module, params) == {"x": 257}


def test_made_up_sides_are_multiples_where_the_model_asks_for_them(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'mlfc[verify]'")
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["p", "", "twice"], ["r"], mode="nearest", nearest_mode="floor"),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    twice = np.array([1, 1, 2, 2], np.float32)
    path = saved_graph(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [1, 1, "h", "w"])}, twice=twice)
    assert verify(path, samples=3).is_within
