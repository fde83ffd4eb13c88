"""TFLite operators in every dtype of LiteRT's reference kernels: integers bit for bit, floats closely."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.verify.litert import LiteRtReference
from tests.tflite_builder import Op, T, build
from tests.tflite_cases import Case
from tests.tflite_dtype_cases import cases
from tests.unit.test_tflite_ops import Samples, check, model_of

CASES = cases(11)
SAMPLES = 2
_WHOLE = ("int32", "int64")  # small numbers, whose products do not overflow


def _value(rng: np.random.Generator, case: Case, dtype: str, shape: tuple[int, ...]) -> Any:
    if dtype == "float32":
        return rng.uniform(*case.ranges, shape).astype(np.float32)
    if dtype in ("bool", *_WHOLE):
        low, high = (0, 2) if dtype == "bool" else (-20, 21)
        return rng.integers(low, high, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.fixture(scope="module")
def samples() -> Samples:
    """Return inputs and the results of all operators, compiled as one model in this process."""
    model, rng, found = mlfc.compile(model_of(CASES), target="llvm"), np.random.default_rng(5), []
    fed_tensors = [(case, tensor) for case in CASES for tensor in case.tensors if tensor.name in case.inputs]
    for _ in range(SAMPLES):
        fed = {tensor.name: _value(rng, case, tensor.dtype, tuple(tensor.shape)) for case, tensor in fed_tensors}
        found.append((fed, model.run(fed)))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_gives_what_litert_gives(case: Case, samples: Samples) -> None:
    check(case, samples)


def test_what_follows_from_shapes_alone_is_known_when_the_model_is_compiled() -> None:
    tensors = [T(name, (1,), "int32", [value]) for name, value in (("one", 1), ("three", 3))]
    tensors += [
        T("tall", (2,), "int32", [5, 1]),
        T("x", (1, 1, 4)),
        T("shape", (3,), "int32"),
        T("last", (2,), "int32"),
    ]
    tensors += [T("rows", (1, 4)), T("whole", (2,), "int32"), T("y", (5, 4))]
    model = build(tensors, [
        Op("SHAPE", ["x"], ["shape"], "ShapeOptions", {"OutType": 2}),
        Op("STRIDED_SLICE", ["shape", "one", "three", "one"], ["last"], "StridedSliceOptions"),
        Op("RESHAPE", ["x", "last"], ["rows"], "ReshapeOptions"),
        Op("BROADCAST_ARGS", ["last", "tall"], ["whole"]),
        Op("BROADCAST_TO", ["rows", "whole"], ["y"], "BroadcastToOptions", version=2),
    ], ["x"], ["y"])  # fmt: skip
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    np.testing.assert_array_equal(
        mlfc.compile(model, target="llvm").run({"x": x})["y"], LiteRtReference(model).run({"x": x})["y"]
    )
