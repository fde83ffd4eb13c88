"""Operators whose tables depend on runtime dimension sizes, compared with ONNX Runtime and ONNX's evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

import mlfc
from mlfc.errors import MlfcError
from tests.relay_dynamic import RefusedError, run_dynamic
from tests.verify_relay import verify

RNG = np.random.default_rng(6)
WINDOWS = ("HannWindow", "HammingWindow", "BlackmanWindow")


def parsed(inputs: str, outputs: str, body: str, opset: int = 20) -> onnx.ModelProto:
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return onnx.parser.parse_model(text)


def reals(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def check(model: onnx.ModelProto, sets: Sequence[Mapping[str, Any]], reference: Any = ReferenceEvaluator) -> None:
    """Compare runs of one import."""
    module, params = mlfc.import_model(model, dynamic=True)
    verify(module)
    expected = reference(model if reference is ReferenceEvaluator else model.SerializeToString())
    for inputs in sets:
        for found, wanted in zip(run_dynamic(module, params, inputs), expected.run(None, dict(inputs)), strict=True):
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("inverse", "onesided", "parts"), [(0, 0, 2), (0, 1, 1), (1, 0, 2), (1, 1, 2), (0, 0, 1)])
def test_transforms_are_as_long_as_their_axis(inverse: int, onesided: int, parts: int) -> None:
    body = f"a = Constant <value = int64 {{1}}> () y = DFT <inverse = {inverse}, onesided = {onesided}> (x, , a)"
    model = parsed(f"float[b, n, m, {parts}] x", "float[c, d, e, f] y", body)
    check(model, [{"x": reals(2, count, 3, parts)} for count in (2, 5, 8)])


def test_transforms_take_a_length_that_the_run_gives() -> None:
    model = parsed("float[b, n, 1] x, int64 l", "float[c, d, e] y", "y = DFT <onesided = 1> (x, l)")
    check(model, [{"x": reals(2, n, 1), "l": np.array(length)} for n, length in ((5, 5), (5, 8), (8, 5))])
    frames = "s = Constant <value = int64 {4}> () l = Constant <value = int64 {8}> () y = STFT (x, s, , l)"
    frames_of = parsed("float[b, n] x", "float[b, f, k, 2] y", frames)
    check(frames_of, [{"x": reals(1, 8)}, {"x": reals(2, 21)}], InferenceSession)


@pytest.mark.parametrize("periodic", [0, 1])
def test_windows_are_as_long_as_the_run_says(periodic: int) -> None:
    body = " ".join(f"{name[0]} = {name} <periodic = {periodic}> (n)" for name in ("HannWindow", "BlackmanWindow"))
    model = parsed("int64 n", "float[k] H, float[l] B", body)
    check(model, [{"n": np.array(count)} for count in (2, 3, 9)], InferenceSession)
    late = parsed("float[n] x", "float[n] y", f"s = Size (x) y = HammingWindow <periodic = {periodic}> (s)")
    check(late, [{"x": reals(count)} for count in (2, 9)], InferenceSession)
    module, params = mlfc.import_model(model, dynamic=True)
    one = run_dynamic(module, params, {"n": np.array(1)})
    fixed, values = mlfc.import_model(model, values={"n": np.array(1)})
    for found, wanted in zip(one, run_dynamic(fixed, values, {}), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-30)


@pytest.mark.parametrize("corners", [0, 1])
def test_grids_have_the_size_that_the_run_says(corners: int) -> None:
    flat = parsed(
        "float[b, 2, 3] t, int64[4] s", "float[c, h, w, 2] y", f"y = AffineGrid <align_corners = {corners}> (t, s)"
    )
    sizes = [(1, 1, 3, 4), (2, 3, 2, 7)]
    check(flat, [{"t": reals(size[0], 2, 3), "s": np.array(size)} for size in sizes])
    body = f"s = Shape (x) y = AffineGrid <align_corners = {corners}> (t, s)"
    deep = parsed("float[b, 3, 4] t, float[b, c, d, h, w] x", "float[b, d, h, w, 3] y", body)
    check(deep, [{"t": reals(2, 3, 4), "x": reals(2, 1, 2, 3, 5)}])
    module, params = mlfc.import_model(flat, dynamic=True)
    with pytest.raises(RefusedError):
        run_dynamic(module, params, {"t": reals(2, 2, 3), "s": np.array((3, 1, 2, 2))})


def test_images_are_cropped_on_one_axis_and_padded_on_the_other() -> None:
    shapes, sizes = ((3, 4), (6, 1)), ((2, 7), (6, 4), (0, 1), (7, 3))
    late = parsed("float[a, b] x, int64[2] s", "float[c, d] y", "y = CenterCropPad (x, s)")
    check(late, [{"x": reals(*shape), "s": np.array(size)} for shape in shapes for size in sizes])
    fixed = "s = Constant <value = int64[2] {4, 3}> () y = CenterCropPad <axes = [0, 2]> (x, s)"
    check(parsed("float[a, 2, b] x", "float[4, 2, 3] y", fixed), [{"x": reals(a, 2, b)} for a, b in (*shapes, (5, 3))])


@pytest.mark.parametrize(
    "attributes",
    ["", "pads = [1, 1, 1, 1], ceil_mode = 1,", "pads = [1, 1, 1, 1], dilations = [2, 2], storage_order = 1,",
     'auto_pad = "SAME_LOWER",'],
)  # fmt: skip
def test_places_of_largest_elements_are_those_of_open_images(attributes: str) -> None:
    body = f"y, i = MaxPool <{attributes} kernel_shape = [3, 2], strides = [2, 1]> (x)"
    model = parsed("float[b, c, h, w] x", "float[b, c, e, f] y, int64[b, c, e, f] i", body)
    shapes = ((2, 1, 7, 4), (1, 3, 6, 5))
    # rounded numbers have ties, of which the first index is returned
    check(model, [{"x": np.round(reals(*shape))} for shape in shapes], InferenceSession)


def test_windows_of_padding_alone_end_the_run() -> None:
    body = "y, i = MaxPool <pads = [1, 1], dilations = [2], kernel_shape = [2]> (x)"
    model = parsed("float[b, c, w] x", "float[b, c, f] y, int64[b, c, f] i", body)
    check(model, [{"x": reals(1, 2, 4)}], InferenceSession)
    module, params = mlfc.import_model(model, dynamic=True)
    with pytest.raises(RefusedError):
        run_dynamic(module, params, {"x": reals(1, 2, 1)})


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_takes_any_number_of_steps(rule: str) -> None:
    gated, corrected = "gated" in rule, "delta" in rule
    inputs = "float[b, t, 8] q, float[b, t, 4] k, float[b, t, 6] v, float[b, 1, 4, 6] p"
    inputs += ", float[b, t, 1] d" * gated + ", float[b, t, 1] r" * corrected
    given = "q, k, v, p" + (", d" if gated else ", " * corrected) + ", r" * corrected
    body = f'y, z = LinearAttention <update_rule = "{rule}", q_num_heads = 2, kv_num_heads = 1> ({given})'
    model = parsed(inputs, "float[b, t, 12] y, float[b, 1, 4, 6] z", body, 27)
    sets = []
    for batch, steps in ((1, 1), (2, 5)):
        values = {"q": reals(batch, steps, 8), "k": reals(batch, steps, 4), "v": reals(batch, steps, 6)}
        values |= {"p": reals(batch, 1, 4, 6)}
        values |= {"d": -np.abs(reals(batch, steps, 1))} if gated else {}
        sets.append(values | ({"r": np.abs(reals(batch, steps, 1)) / 9} if corrected else {}))
    check(model, sets)


def test_c_computes_the_tables(tmp_path: Path) -> None:
    body = """
        a = Constant <value = int64 {1}> () f = DFT (x, , a)  n = Size (x) w = HannWindow (n)
        t = Transpose <perm = [0, 2, 1]> (x) y, i = MaxPool <kernel_shape = [2]> (t)"""
    model = parsed("float[1, n, 1] x", "float[1, n, 2] f, float[1, 1, k] y, int64[1, 1, k] i, float[m] w", body)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        library = mlfc.compile(model, "c").export_library(tmp_path / "tables.so")
    reference, loaded = InferenceSession(model.SerializeToString()), mlfc.load(library)
    for count in (4, 7):
        x = reals(1, count, 1)
        found = loaded.run({"x": x})
        for ours, wanted in zip(found.values(), reference.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(ours, wanted, atol=1e-5)


def test_lengths_and_axes_that_no_run_can_have_are_refused() -> None:
    late_axis = parsed("float[b, n, 1] x, int64 a", "float[c, d, e] y", "y = DFT (x, , a)")
    with pytest.raises(MlfcError, match="'axis'"):
        mlfc.import_model(late_axis, dynamic=True)
    whole = parsed("float[b, n] x, int64 s", "float[b, f, k, 2] y", "y = STFT (x, s)")
    with pytest.raises(MlfcError, match="frame"):
        mlfc.import_model(whole, dynamic=True)
