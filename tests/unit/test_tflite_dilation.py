"""Convolutions between SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND, as in old dilated convolutions, against LiteRT."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.relay.ir import Call
from mlfc.relay.visitor import post_order
from mlfc.verify.litert import LiteRtReference
from tests.tflite_builder import Op, T, build
from tests.tflite_cases import RELU, SAME, VALID, ints

_STEPS = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}


@dataclass(frozen=True)
class Case:
    """Splitting, a convolution and joining; `folds` is False if they do not equal one convolution."""

    name: str
    dtype: str = "int8"
    blocks: tuple[int, ...] = (2, 2)
    widths: tuple[int, ...] = (2, 3, 2, 2)
    crops: tuple[int, ...] = (0, 1, 0, 0)
    back: tuple[int, ...] | None = None  # the blocks in which results are joined, if different
    padding: int = VALID
    stride: int = 1
    depthwise: bool = False
    line: bool = False  # one spatial dimension
    folds: bool = True


CASES = [
    Case("float", "float32"), Case("int8"), Case("int16", "int16"), Case("depthwise", depthwise=True),
    Case("apart", blocks=(3, 2), widths=(3, 3, 2, 2), crops=(1, 2, 0, 0)),
    Case("one way", blocks=(1, 4), widths=(0, 0, 4, 4), crops=(0, 0, 1, 3), depthwise=True),
    Case("padded inside", padding=SAME, widths=(0, 1, 0, 0)), Case("line", line=True, widths=(4, 1), crops=(0, 1)),
    Case("line of floats", "float32", line=True, widths=(2, 3), crops=(0, 1)),
    Case("cropped", widths=(0, 1, 0, 0), crops=(0, 1, 1, 0), folds=False),
    Case("joined apart", blocks=(2, 1), widths=(2, 3, 2, 2), back=(1, 2), crops=(0, 0, 0, 0), folds=False),
    Case("strides", stride=2, crops=(0, 0, 0, 0), folds=False),
]  # fmt: skip


def _codes(dtype: str, scale: float, *shape: int) -> T:
    facts: dict[str, Any] = {"int8": {"scale": scale, "zero": 7}, "int16": {"scale": scale / 100}}.get(dtype, {})
    return T("", shape, dtype, **facts)


def _model(case: Case) -> tuple[list[T], list[Op]]:
    """Return the tensors and operators of a case, prefixed with its name."""
    rng, channels, filters = np.random.default_rng(len(case.name)), 4, 4 if case.depthwise else 5
    space = (11,) if case.line else (9, 8)
    split = [
        (extent + low + high) // block
        for extent, block, low, high in zip(space, _blocks(case), case.widths[::2], case.widths[1::2], strict=True)
    ]
    count = int(np.prod(_blocks(case)))
    taps = (1, 3) if case.line else (3, 2)
    seen = [1, *split] if case.line else split
    lost = [0 if case.padding == SAME else tap - 1 for tap in taps]
    found = [-(-(extent - less) // case.stride) for extent, less in zip(seen, lost, strict=True)]
    back = case.back or _blocks(case)
    whole = [extent * block for extent, block in zip(found[1:] if case.line else found, back, strict=True)]
    whole = [extent - low - high for extent, low, high in zip(whole, case.crops[::2], case.crops[1::2], strict=True)]
    shape = (1, *taps, filters) if case.depthwise else (filters, *taps, channels)
    is_float = case.dtype == "float32"
    weights = T("w", shape, "float32" if is_float else "int8", rng.integers(-9, 10, shape))
    bias = T(
        "b", (filters,), {"int8": "int32", "int16": "int64"}.get(case.dtype, "float32"), rng.integers(-99, 99, filters)
    )
    x, y = _codes(case.dtype, 0.1, 1, *space, channels), _codes(case.dtype, 0.3, 1, *whole, filters)
    if not is_float:
        weights = replace(weights, scale=np.linspace(0.02, 0.04, filters), axis=3 if case.depthwise else 0)
        bias = replace(bias, scale=np.float32(x.scale) * np.asarray(weights.scale, np.float32))
    batches = replace(x, shape=(count, *split, channels))
    results = replace(y, shape=(count, *found, filters))
    tensors = [
        replace(x, name="x"), replace(y, name="y"), weights, bias, replace(batches, name="batches"),
        replace(results, name="results"), _constant("blocks", _blocks(case)), _constant("back", back),
        _constant("widths", case.widths, 2), _constant("crops", case.crops, 2),
    ]  # fmt: skip
    kind = "DEPTHWISE_CONV_2D" if case.depthwise else "CONV_2D"
    fields = {**_STEPS, "StrideH": case.stride, "StrideW": case.stride, "Padding": case.padding,
              "FusedActivationFunction": RELU, **({"DepthMultiplier": 1} if case.depthwise else {})}  # fmt: skip
    options = "DepthwiseConv2DOptions" if case.depthwise else "Conv2DOptions"
    ends = ("wide", "wide results") if case.line else ("batches", "results")
    ops = [
        Op("SPACE_TO_BATCH_ND", ["x", "blocks", "widths"], ["batches"], "SpaceToBatchNDOptions"),
        Op(kind, [ends[0], "w", "b"], [ends[1]], options, fields),
        Op("BATCH_TO_SPACE_ND", ["results", "back", "crops"], ["y"], "BatchToSpaceNDOptions"),
    ]
    if case.line:
        tensors += [replace(batches, name="wide", shape=(count, 1, *split, channels)),
                    replace(results, name="wide results"), _constant("one", (1,))]  # fmt: skip
        tensors[5] = replace(results, name="results", shape=(count, *found[1:], filters))
        ops.insert(1, Op("EXPAND_DIMS", ["batches", "one"], ["wide"], "ExpandDimsOptions"))
        ops.insert(3, Op("SQUEEZE", ["wide results"], ["results"], "SqueezeOptions", {"SqueezeDims": [1]}))
    named = [replace(item, name=f"{case.name}/{item.name}") for item in tensors]
    fields_of = [
        replace(op, **{part: [f"{case.name}/{name}" for name in getattr(op, part)] for part in ("inputs", "outputs")})
        for op in ops
    ]
    return named, fields_of


def _blocks(case: Case) -> tuple[int, ...]:
    return case.blocks[: len(case.widths) // 2]


def _constant(name: str, values: tuple[int, ...], columns: int = 0) -> T:
    value = ints(*values).reshape((-1, columns) if columns else -1)
    return T(name, value.shape, "int32", value)


def _file(cases: list[Case]) -> bytes:
    models = [_model(case) for case in cases]
    tensors, ops = ([item for model in models for item in model[part]] for part in (0, 1))
    return build(tensors, ops, [f"{case.name}/x" for case in cases], [f"{case.name}/y" for case in cases])  # type: ignore[arg-type]


def test_results_are_those_of_litert() -> None:
    data, rng = _file(CASES), np.random.default_rng(0)
    fed = {}
    for case in CASES:
        shape = (1, 11, 4) if case.line else (1, 9, 8, 4)
        codes = rng.integers(-128, 128, shape)
        fed[f"{case.name}/x"] = codes.astype(case.dtype) * (100 if case.dtype == "int16" else 1)
    ours, theirs = mlfc.compile(data, target="llvm").run(fed), LiteRtReference(data).run(fed)
    for case in CASES:
        found, expected = ours[f"{case.name}/y"], theirs[f"{case.name}/y"]
        if case.dtype == "float32":
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max(), err_msg=case.name)
        else:
            np.testing.assert_array_equal(found, expected, case.name)
            assert len(np.unique(expected)) > 10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_one_convolution_where_that_is_equal(case: Case) -> None:
    module, params = mlfc.import_model(_file([case]))
    calls = [item.op.name for item in post_order(module.main.body) if isinstance(item, Call)]
    assert sum(name.endswith("conv2d") for name in calls) == 1
    assert ("transpose" in calls) != case.folds
    if case.name == "int8":
        assert len(mlfc.build(module, params=params, target="llvm").program.calls) == 1
