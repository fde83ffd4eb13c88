"""TFLite operators with weights of 4 and 2 bits against LiteRT's reference kernels, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.errors import ModelError
from tests.int16_cases import Int16Cases
from tests.tflite_builder import T
from tests.tflite_cases import RELU, SAME, Case
from tests.unit.test_tflite_ops import Samples, check, inputs_of, model_of

_CONV = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, "Padding": SAME}


class _Cases(Int16Cases):
    def narrow(self, *shape: int, channels: int = 0, axis: int = 0, dtype: str = "int4") -> T:
        """Return random constant weights over the whole range of the dtype."""
        half = 1 << (int(dtype[-1]) - 1)
        value = self.rng.integers(-half, half, shape)
        scale = self.rng.uniform(0.02, 0.2, channels or 1).astype(np.float32)
        return T("", shape, dtype, value, scale, 0, axis)

    def layer(
        self, name: str, code: str, data: T, weights: T, result: T, options: str, fields: Any, **kind: Any
    ) -> None:
        """Add a layer with a bias in the dtype that corresponds to its data."""
        count = weights.shape[3] if code == "DEPTHWISE_CONV_2D" else weights.shape[0]
        if data.dtype == "float32":
            bias: Any = self.floats(count)
        else:
            bias = self.sums(data, weights, count, "int64" if data.dtype == "int16" else "int32", 1 << 10)
        self.add(f"{name}_{data.dtype}", code, [data, weights, bias], result, options, fields, **kind)


def _cases() -> list[Case]:
    c = _Cases(np.random.default_rng(9))
    for dtype in ("int8", "int16", "float32"):
        kind = {"tolerance": 2e-6} if dtype == "float32" else {}

        def t(*shape: int, scale: float = 0.05, dtype: str = dtype) -> T:
            if dtype == "float32":
                return T("", shape)
            return c.t(*shape, scale=scale / 256) if dtype == "int16" else c.codes(*shape, scale=scale)

        for name, filters, taken, channels in (("conv", 8, 4, 8), ("odd", 5, 3, 5), ("one", 4, 4, 0)):
            weights = c.narrow(filters, 3, 3, taken, channels=channels)
            c.layer(name, "CONV_2D", t(1, 5, 4, taken), weights, t(1, 5, 4, filters, scale=0.3), "Conv2DOptions",
                    _CONV, **kind)  # fmt: skip
        if dtype == "int8":  # LiteRT supports it only for int8
            for channels in (6, 3):
                weights = c.narrow(1, 3, 3, channels, channels=channels, axis=3)
                c.layer(f"depthwise_{channels}", "DEPTHWISE_CONV_2D", t(1, 5, 4, channels), weights,
                        t(1, 5, 4, channels, scale=0.2), "DepthwiseConv2DOptions",
                        {**_CONV, "DepthMultiplier": 1}, **kind)  # fmt: skip
        for narrow in ("int4", "int2"):
            for name, units, taken, channels in (("dense", 8, 20, 0), ("odd", 7, 13, 0), ("per", 6, 9, 6)):
                weights = c.narrow(units, taken, channels=channels, dtype=narrow)
                c.layer(f"dense_{narrow}_{name}", "FULLY_CONNECTED", t(3, taken), weights, t(3, units, scale=0.2),
                        "FullyConnectedOptions", {"FusedActivationFunction": RELU}, **kind)  # fmt: skip
    c.add("dequantize", "DEQUANTIZE", [c.narrow(3, 5)], T("", (3, 5)), "DequantizeOptions", {})
    c.add("dequantize_per", "DEQUANTIZE", [c.narrow(3, 5, channels=3)], T("", (3, 5)), "DequantizeOptions", {})
    return c.found


CASES = _cases()


def _run(target: str) -> Samples:
    fed = inputs_of(CASES, np.random.default_rng(2))
    mod, params = mlfc.import_model(model_of(CASES))
    return [(fed, load_factory(mlfc.build(mod, params=params, target=target)).run(fed))]


@pytest.fixture(scope="module")
def samples() -> Samples:
    return _run("llvm")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_is_bit_exact(case: Case, samples: Samples) -> None:
    check(case, samples)


@pytest.mark.parametrize(("core", "optimize"), [("cortex-m3", "speed"), ("cortex-m3", "size"), ("cortex-m4", "speed")])
def test_small_cores_agree(core: str, optimize: str, samples: Samples, quick_builds: None) -> None:
    fed, expected = samples[0]
    cases = [case for case in CASES if not case.tolerance and "int2" not in case.name]
    mod, params = mlfc.import_model(model_of(cases))
    factory = mlfc.build(mod, params=params, target=f"c -mcpu={core}", optimize=optimize)
    given = {name: fed[name] for case in cases for name in case.inputs}
    for name, value in load_factory(factory).run(given).items():
        np.testing.assert_array_equal(value, expected[name], name)


def test_a_buffer_of_the_wrong_length_is_refused() -> None:
    c = _Cases(np.random.default_rng(1))
    c.add("dequantize", "DEQUANTIZE", [c.narrow(3, 5)], T("", (3, 5)), "DequantizeOptions", {})
    c.found[0].tensors[0].value = np.zeros((3, 4))
    with pytest.raises(ModelError, match="a int4 tensor of shape \\(3, 5\\) has 8 bytes, its buffer 6"):
        mlfc.import_model(model_of(c.found))


def test_small_cores_keep_two_weights_in_a_byte() -> None:
    c = _Cases(np.random.default_rng(1))
    sizes = {}
    for dtype in ("int4", "int8"):
        weights = c.narrow(16, 3, 3, 8)
        weights.dtype = dtype
        weights.value = weights.value * (10 if dtype == "int8" else 1)
        c.found.clear()
        c.layer(
            "conv", "CONV_2D", c.codes(1, 5, 5, 8), weights, c.codes(1, 5, 5, 16, scale=0.3), "Conv2DOptions", _CONV
        )
        mod, params = mlfc.import_model(model_of(c.found))
        factory = mlfc.build(mod, params=params, target="c -mcpu=cortex-m3")
        sizes[dtype] = factory.code.sizes.constants
    assert sizes["int8"] - sizes["int4"] == 16 * 3 * 3 * 8 // 2
