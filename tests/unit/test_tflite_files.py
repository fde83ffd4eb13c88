"""TFLite files with signatures, complex numbers or MediaPipe's operator, and rejected forms of operators."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.cli.check import check as command
from mlfc.cli.inspect import inspect
from mlfc.cli.options import BoardOptions, Inputs
from mlfc.errors import MlfcError
from mlfc.verify.litert import LiteRtReference
from tests.tflite_builder import Graph, Op, T, build, build_graphs
from tests.tflite_cases import SAME, ints
from tests.tflite_sweep import Form, refusal

ROWS = ("add", "scale")


def _signed() -> bytes:
    """Return a model with two signatures: rows plus constants, and rows times constants."""
    graphs = []
    for name, code, options in zip(ROWS, ("ADD", "MUL"), ("AddOptions", "MulOptions"), strict=True):
        constant = np.array([1, 2, 3], np.float32)
        tensors = [T(f"{name}/x", (2, 3)), T(f"{name}/c", (3,), "float32", constant), T(f"{name}/y", (2, 3))]
        op = Op(code, [f"{name}/x", f"{name}/c"], [f"{name}/y"], options)
        graphs.append(Graph(tensors, [op], [f"{name}/x"], [f"{name}/y"], name))
    return build_graphs(*graphs)


def test_a_signature_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, rows = _signed(), np.arange(6, dtype=np.float32).reshape(2, 3)
    for name in ROWS:
        model = mlfc.compile(data, "llvm", signature=name)
        expected = LiteRtReference(data, name).run({f"{name}/x": rows})
        np.testing.assert_array_equal(model.run({f"{name}/x": rows})[f"{name}/y"], expected[f"{name}/y"])
        assert model.verify(samples=1).is_within
    with pytest.raises(MlfcError, match="2 signatures: 'add', 'scale'"):
        mlfc.import_model(data)
    with pytest.raises(MlfcError, match="unknown signature 'ad'; nearest: 'add'"):
        mlfc.import_model(data, signature="ad")
    remedies = [remedy for problem in mlfc.check(data) for remedy in problem.remedies]
    assert [*map(str, remedies)] == ["--signature add"]
    path = tmp_path / "two.tflite"
    path.write_bytes(data)
    command(path, fixed=Inputs(signature="scale"), board=BoardOptions())
    assert "no problems found" in capsys.readouterr().out
    inspect(path, fixed=Inputs(signature="scale"))
    assert "scale/x" in capsys.readouterr().out


def test_spectra_are_those_of_litert() -> None:
    for shape, (height, width) in (((2, 3, 16), (1, 16)), ((5, 10), (4, 8)), ((1, 2, 3), (4, 2))):
        half = (*shape[:-2], height, width // 2 + 1)
        tensors = [T("x", shape), T("lengths", (2,), "int32", ints(height, width)), T("c", half, "complex64")]
        parts = ("COMPLEX_ABS", "REAL", "IMAG")
        ops = [Op("RFFT2D", ["x", "lengths"], ["c"]), *(Op(code, ["c"], [code]) for code in parts)]
        data = build([*tensors, *(T(code, half) for code in parts)], ops, ["x"], parts)
        fed = {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
        ours, theirs = mlfc.compile(data, "llvm").run(fed), LiteRtReference(data).run(fed)
        for name in parts:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=2e-6 * np.abs(theirs[name]).max())
    with pytest.raises(MlfcError, match="complex outputs are not supported"):
        mlfc.import_model(build(tensors, ops[:1], ["x"], ["c"]))


@pytest.mark.parametrize(("padding", "size"), [(1, (3, 2)), (2, (2, 3))])
def test_mediapipes_transposed_convolution(padding: int, size: tuple[int, int]) -> None:
    rng, steps = np.random.default_rng(3), (3, 2)  # vertical and horizontal strides
    x, w = rng.normal(size=(1, 3, 4, 2)), rng.normal(size=(5, *size, 2))
    bias = rng.normal(size=5)
    cut = [max(0, k - (n - 1) % s - 1) if padding == 1 else 0 for k, n, s in zip(size, (3, 4), steps, strict=True)]
    full = np.zeros((1, 2 * steps[0] + size[0], 3 * steps[1] + size[1], 5)) + bias
    for i, j in np.ndindex(3, 4):
        part = np.einsum("c,oyxc->yxo", x[0, i, j], w)
        full[0, i * steps[0] : i * steps[0] + size[0], j * steps[1] : j * steps[1] + size[1]] += part
    rows, columns = (slice(c // 2, n - (c - c // 2)) for c, n in zip(cut, full.shape[1:3], strict=True))
    expected = full[:, rows, columns]
    tensors = [T("x", x.shape), T("w", w.shape, "float32", w), T("b", (5,), "float32", bias), T("y", expected.shape)]
    options = struct.pack("<3i", padding, *steps[::-1])
    op = Op("CUSTOM Convolution2DTransposeBias", ["x", "w", "b"], ["y"], custom=options)
    found = mlfc.compile(build(tensors, [op], ["x"], ["y"]), "llvm").run({"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def _codes(*shape: int, dtype: str = "int8", scale: float | None = 0.1, zero: int = 4) -> T:
    return T("", shape, dtype, None, scale, zero)


_PLAIN, _STEPS = T("", (3, 4), "int8"), {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
_WORDS = {"QuantizedBiasType": 0}
REFUSED = [
    (Form("RELU6", [T("", (3, 4), "int16")], [T("", (3, 4), "int16")]), "without a scale"),
    (Form("MUL", [_PLAIN, _PLAIN], [_PLAIN], "MulOptions"), "without a scale"),
    (Form("NOT_EQUAL", [T("", (3,), "int16")] * 2, [T("", (3,), "bool")], "NotEqualOptions"), "without a scale"),
    (Form("LESS", [_codes(3, scale=3.7), _codes(3)], [T("", (3,), "bool")], "LessOptions"), "scale 3.7"),
    (Form("SUM", [_codes(3, 4), ints(1)], [_codes(3)], "ReducerOptions"), "unsigned bytes"),
    (Form("ARG_MAX", [T("", (3, 4)), ints(1)], [T("", (3,), "int64")], "ArgMaxOptions", {"OutputType": 2}), "type"),
    (Form("SHAPE", [_PLAIN], [T("", (2,), "int64")], "ShapeOptions", {"OutType": 2}), "another type"),
    (Form("MATRIX_DIAG", [T("", (3,), "uint64")], [T("", (3, 3), "uint64")], "MatrixDiagOptions"), "UINT64"),
    (Form("ADD", [T("", (3,))] * 2, [T("", (3,))], "AddOptions", {"FusedActivationFunction": -1}), "number -1"),
    (Form("ADD", [T("", (3,))] * 2, [T("", (3,))], "AddOptions", {"FusedActivationFunction": 4}), "number 4"),
    (Form("STRIDED_SLICE", [T("", (4,)), ints(3), ints(0), ints(-1)], [T("", ())], "StridedSliceOptions",
          {"ShrinkAxisMask": 1}), "stride -1"),
    (Form("CONV_2D", [_codes(1, 4, 4, 2), T("", (3, 1, 1, 2), "int8", np.ones((3, 1, 1, 2), np.int8), 0.1, 3)],
          [_codes(1, 4, 4, 3)], "Conv2DOptions", {**_STEPS, "Padding": SAME}), "must be symmetric"),
    (Form("FULLY_CONNECTED", [_codes(1, 2, dtype="int16", zero=0), T("", (3, 2), "int8", np.ones((3, 2)), 0.1),
                              T("", (3,), "int32", ints(1, 2, 3), 0.01)],
          [_codes(1, 3, dtype="int16", zero=0)], "FullyConnectedOptions", _WORDS), "differs from its bias"),
    (Form("FULLY_CONNECTED", [_codes(1, 2, dtype="int16", zero=0), T("", (3, 2), "int16", np.ones((3, 2)), 0.1),
                              T("", (3,), "int64", ints(1, 2, 3), 0.01)],
          [_codes(1, 3, dtype="int16", zero=0)], "FullyConnectedOptions"), "differs from its bias of int64"),
    (Form("REVERSE_SEQUENCE", [T("", (3, 4)), ints(2, 1, 5)], [T("", (3, 4))], "ReverseSequenceOptions",
          {"SeqDim": 1, "BatchDim": 0}), "exceed"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "reason"), REFUSED, ids=[f"{form.code}-{reason}" for form, reason in REFUSED])
def test_what_litert_computes_otherwise_is_refused(form: Form, reason: str) -> None:
    assert reason in refusal(form)
