"""Convolutions by Winograd transforms, against sums in double precision; the layers and targets that use them."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.kernels import winograd
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.target.target import parse_target
from mlfc.tir import ir as tir
from mlfc.tir.parallel import parallelize
from mlfc.tir.visitor import walk
from mlfc.transform.lower_group import lower_group
from tests.native.kernel_runner import Kernels, group_of
from tests.native.test_kernels import Case, attributes, reference

TARGETS = {
    "wide": Features(vector_registers=32, winograd=True),
    "narrow": Features(packing_registers=32, winograd=True),
}
SAME = (1, 1, 1, 1)
CASES = {
    "whole tiles": (Case((1, 8, 8, 16), (3, 3), 64, padding=SAME), 4),
    "cut tiles, a part of a block": (Case((2, 9, 14, 48), (3, 3), 39, padding=SAME), 4),
    "no padding": (Case((1, 9, 11, 16), (3, 3), 16), 4),
    "padding on some sides": (Case((1, 7, 9, 16), (3, 3), 17, padding=(2, 0, 1, 3)), 4),
    "long sums": (Case((1, 6, 6, 1040), (3, 3), 20, padding=SAME), 4),
    "many weights": (Case((1, 6, 7, 32), (3, 3), 80, padding=SAME), 2),
    "many weights and tiles": (Case((1, 18, 19, 32), (3, 3), 33, padding=SAME), 4),
    "few pixels": (Case((1, 5, 9, 16), (3, 3), 20, padding=SAME), None),
    "stride": (Case((1, 12, 12, 16), (3, 3), 16, padding=SAME, strides=(2, 2)), None),
    "dilation": (Case((1, 12, 12, 16), (3, 3), 16, padding=SAME, dilation=(2, 2)), None),
    "groups": (Case((1, 12, 12, 32), (3, 3), 32, padding=SAME, groups=2), None),
    "channels": (Case((1, 12, 12, 24), (3, 3), 16, padding=SAME), None),
}


def layer(case: Case) -> tuple[ir.Function, npt.NDArray[np.float32], npt.NDArray[np.float32], tuple[int, ...]]:
    """Return a convolution with a bias, a residual addition and a ReLU, its weights, bias and the residual's shape."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((*case.kernel, case.data[3] // case.groups, case.filters)).astype(np.float32)
    bias = rng.standard_normal(case.filters).astype(np.float32)
    x = ir.Var("x", ir.TensorType(case.data, "float32"))
    call = ir.call("nn.conv2d", [x, ir.const(weights)], **attributes(case))
    biased = ir.call("nn.bias_add", [call, ir.const(bias)], axis=3)
    residual = ir.Var("y", biased.type)
    body = ir.call("nn.relu", [ir.call("add", [biased, residual])])
    return group_of(body, [x, residual]), weights, bias, residual.type.shape


def test_results_are_those_of_sums_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: dict[tuple[str, str], tuple[ir.Function, Features]] = {}
    kernels: dict[bool, Kernels[tuple[str, str]]] = {}
    for is_large in (False, True):
        groups = {
            (name, target): (layer(case)[0], features)
            for name, (case, _) in CASES.items()
            for target, features in TARGETS.items()
            if name.startswith("many weights") == is_large
        }
        monkeypatch.setattr(winograd, "LARGE_WEIGHTS", 0 if is_large else 1 << 40)
        kernels[is_large] = Kernels(groups)
        kernels[is_large][next(iter(groups))]  # builds all kernels
    for name, (case, results) in CASES.items():
        _, weights, bias, shape = layer(case)
        rng = np.random.default_rng(2)
        data, residual = (rng.standard_normal(each).astype(np.float32) for each in (case.data, shape))
        sums = reference(case, data.astype(np.float64), weights.astype(np.float64))
        for target in TARGETS:
            kernel = kernels[name.startswith("many weights")][name, target]
            made = {buffer.name: buffer.shape for buffer in kernel.group.prim.scratch}
            assert made.get("inputs", (0,))[0] == (results + 2) ** 2 if results else "inputs" not in made, name
            tolerance = 1e-5 * np.abs(sums).max()
            np.testing.assert_allclose(
                kernel(data, residual), np.maximum(sums + bias + residual, 0), rtol=0, atol=tolerance, err_msg=name
            )


def places_of(features: Features) -> int:
    """Return the number of products per tile that a layer has with these features; 0 without tiles."""
    prim = lower_group(layer(CASES["whole tiles"][0])[0], features).prim
    return next((buffer.shape[0] for buffer in prim.scratch if buffer.name == "inputs"), 0)


def test_a_form_is_for_layers_that_it_computes_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = TARGETS["wide"]
    weights = layer(CASES["whole tiles"][0])[1]
    large, small = (form.error(weights) for form in winograd.FORMS)
    assert small < large < 1e-5
    found = []
    for tolerance in (large, small, small / 2):
        monkeypatch.setattr(winograd, "TOLERANCE", tolerance)
        found.append(places_of(wide))
    assert found == [36, 16, 0]


def test_targets_that_compute_by_transforms() -> None:
    for text, expected in {
        "c": 0, "llvm": 0, "c -mcpu=x86-64-v4": 36, "c -mcpu=x86-64-v3 -winograd=auto": 36,
        "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4": 36, "c -mcpu=cortex-m4 -winograd=auto": 0,
        "c -mcpu=x86-64-v4 -winograd=off": 0, "c -mcpu=auto -mtriple=x86_64-linux-gnu": 36,
        "c -mcpu=auto -mtriple=x86_64-linux-gnu -winograd=off": 0, "c -mcpu=cortex-m4": 0,
    }.items():  # fmt: skip
        target = parse_target(text)
        assert places_of(target.features) == expected, text
        assert {each.winograd for _, each in target.features.levels} <= {bool(expected)}, text
        assert parse_target(str(target)).features == target.features
    assert places_of(parse_target("c -mcpu=x86-64-v4", "size").features) == 0
    with pytest.raises(OptionError, match="-winograd"):
        parse_target("c -winograd=on")


def test_models_to_which_the_last_bit_matters_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ir.Var("x", ir.TensorType((1, 8, 8, 16), "float32"))
    conv = ir.call("nn.conv2d", [x, ir.const(layer(CASES["whole tiles"][0])[1])], **attributes(CASES["whole tiles"][0]))
    module = ir.IRModule({"main": ir.Function((x,), conv)})
    for sensitive in (False, True):
        monkeypatch.setattr(
            sys.modules["mlfc.transform.lower"], "is_rounding_sensitive", lambda _, sensitive=sensitive: sensitive
        )
        factory = mlfc.build(module, "c -mcpu=x86-64-v4")
        names = {buffer.name for call in factory.program.calls for buffer in call.kernel.scratch}
        assert ("inputs" in names) != sensitive


@pytest.mark.parametrize(("side", "channels", "parts"), [(56, 64, [7]), (14, 256, [64, 8]), (28, 128, [98, 252, 49])])
def test_threads_take_bands_or_blocks_whole(side: int, channels: int, parts: list[int]) -> None:
    """Run seven bands, or eight blocks of channels behind the transform, without a barrier in between.

    With fewer blocks, products and transforms are parallelized separately.
    """
    case = Case((1, side, side, channels), (3, 3), channels, padding=SAME)
    prim = parallelize(lower_group(layer(case)[0], TARGETS["wide"]).prim)
    shared = [stmt.count for stmt in walk(prim.body) if isinstance(stmt, tir.Parallel)]
    assert [count.value for count in shared if isinstance(count, tir.Const)] == parts
