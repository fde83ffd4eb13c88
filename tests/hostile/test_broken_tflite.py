"""Damaged TFLite files: each imports or raises one clear error, in few steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlfc.errors import MlfcError, ModelError, ProblemsError, UnsupportedError
from mlfc.frontend.tflite import import_tflite
from tests.counting import counted_calls
from tests.tflite_builder import Op, T, build

SMALL = ("hello_world_int8", "kws_ref_model", "trained_lstm_int8", "keyword_scrambled", "kws_ref_model_float32")
MUTATIONS = 40
MAX_CALLS = 100_000  # 4/3 of the costliest import


def _imports_or_refuses(data: bytes) -> str:
    with counted_calls() as calls:
        try:
            import_tflite(data, "broken")
            result, message = "imported", "none"
        except MlfcError as error:
            result, message = error.code, str(error)
    assert message
    assert calls.number < MAX_CALLS
    assert result != "MLF900", "a damaged file must not look like a bug of mlfc"
    return result


@pytest.mark.parametrize("name", SMALL)
def test_flipped_bits(models: Path, name: str) -> None:
    original = (models / f"{name}.tflite").read_bytes()
    rng, results = np.random.default_rng(11), set()
    for round_number in range(MUTATIONS):
        data = bytearray(original)
        # half of the damage hits the tail, where many files store their tables; weights fill most of the rest
        low = 0 if round_number % 2 else max(len(data) - 6000, 0)
        for position in rng.integers(low, len(data), 1 + round_number % 8):
            data[position] ^= 1 << int(rng.integers(8))
        results.add(_imports_or_refuses(bytes(data)))
    assert len(results) > 1, "the damage never reached what is read"


@pytest.mark.parametrize("name", SMALL)
def test_random_words(models: Path, name: str) -> None:
    original = (models / f"{name}.tflite").read_bytes()
    rng = np.random.default_rng(12)
    for _ in range(MUTATIONS):
        data = bytearray(original)
        for position in rng.integers(8, len(data) - 4, 12):
            data[position : position + 4] = (
                rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 65536]).astype("<u4").tobytes()
            )
        _imports_or_refuses(bytes(data))


@pytest.mark.parametrize("name", SMALL)
def test_truncations(models: Path, name: str) -> None:
    original = (models / f"{name}.tflite").read_bytes()
    for length in np.random.default_rng(13).integers(0, len(original), 30):
        assert _imports_or_refuses(original[: int(length)]) != "imported"


@pytest.mark.parametrize(
    "data", [b"", b"TFL3", b"\0" * 64, b"\x08\0\0\0ONNX" + b"\0" * 64, b"\xff\xff\xff\xffTFL3\xff"]
)
def test_what_is_no_model(data: bytes) -> None:
    with pytest.raises(ModelError):
        import_tflite(data, "broken")


def _one_op(op: Op, *tensors: T) -> bytes:
    return build(tensors, [op], [tensors[0].name], [tensors[-1].name])


def test_all_unsupported_operators_are_listed() -> None:
    tensors = [T(name, (1, 4)) for name in "abcd"]
    operators = [
        Op("HASHTABLE_FIND", ["a"], ["b"]), Op("RELU", ["b"], ["c"]),
        Op("HASHTABLE_FIND", ["c"], ["d"]),
    ]  # fmt: skip
    with pytest.raises(ProblemsError) as caught:
        import_tflite(build(tensors, operators, ["a"], ["d"]), "m")
    text = str(caught.value)
    assert text.count("operator HASHTABLE_FIND is not supported") == 2
    assert "(HASHTABLE_FIND #0)" in text
    assert "(HASHTABLE_FIND #2)" in text


def test_unsupported_operator_names_what_to_do() -> None:
    operator = Op("CALL", ["x"], ["y"])
    with pytest.raises(UnsupportedError, match=r"CALL #0.*Inline the called function"):
        import_tflite(_one_op(operator, T("x", (1, 4)), T("y", (1, 4))), "lstm")


def test_weights_of_the_wrong_size_are_refused() -> None:
    weights = T("w", (3, 4), "float32", np.zeros((2, 4), np.float32))
    op = Op("FULLY_CONNECTED", ["x", "w", ""], ["y"], "FullyConnectedOptions")
    with pytest.raises(ModelError, match=r"tensor 1 \('w'\).*48 bytes, its buffer 32"):
        import_tflite(_one_op(op, T("x", (1, 4)), weights, T("y", (1, 3))), "m")


def test_a_declared_shape_that_is_not_computed_is_refused() -> None:
    op = Op("RELU", ["x"], ["y"])
    with pytest.raises(ModelError, match=r"has shape \(1, 5\) in the file, but computes as \(1, 4\)"):
        import_tflite(_one_op(op, T("x", (1, 4)), T("y", (1, 5))), "m")


def test_a_scale_that_is_no_number_is_refused() -> None:
    op = Op("RELU", ["x"], ["y"])
    broken = T("x", (1, 4), "int8", None, float("nan"), 0)
    with pytest.raises(ModelError, match="scale is not a positive number"):
        import_tflite(_one_op(op, broken, T("y", (1, 4), "int8", None, 0.1, 0)), "m")


def test_an_operator_that_reads_itself_is_refused() -> None:
    data = build([T("x", (4,)), T("y", (4,))], [Op("ADD", ["x", "y"], ["y"], "AddOptions")], ["x"], ["y"])
    with pytest.raises(ModelError, match="reads tensor 'y' before"):
        import_tflite(data, "m")


def test_open_dimensions_take_given_shapes() -> None:
    tensors = [T("x", (1, 4), signature=(-1, 4)), T("y", (1, 4), signature=(-1, 4))]
    data = build(tensors, [Op("RELU", ["x"], ["y"])], ["x"], ["y"])
    module, _ = import_tflite(data, "m", shapes={"x": (3, 4)})
    assert str(module.main.body.type) == "Tensor[(3, 4), float32]"
    with pytest.raises(MlfcError, match="unknown input 'z'"):
        import_tflite(data, "m", shapes={"z": (3, 4)})
