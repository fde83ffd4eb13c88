"""Tiled products on devices against numpy: OpenCL, CUDA C++ on the host, and interpreted launches."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from mlfc.codegen.device import device_kernels, device_source
from mlfc.target.features import Features
from mlfc.tir import interpreter
from mlfc.tir.visitor import launches
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.native.cuda_on_host import assert_nvrtc_takes
from tests.native.device_products import ProductCase, product_cases
from tests.native.device_runner import CudaOnHost, OnOpencl
from tests.verify_tir import verify

DEVICE = Features(vector_bytes=0, dot4=False, gpu=True)
CASES = product_cases()
PLACES = range(len(CASES))
LABELS = [case.label for case in CASES]
UNFUSED = 6
# Every other case: drivers compile slowly, and `test_cuda_text` runs the same launches of all cases. The integer
# convolutions among them are those that are not among the float ones.
SOME = PLACES[::2]


@pytest.fixture(scope="module")
def groups() -> list[LoweredGroup]:
    lowered = [lower_group(case.group, DEVICE) for case in CASES]
    for group in lowered:
        verify(group.prim)
    return lowered


@pytest.fixture(scope="module")
def cuda(groups: list[LoweredGroup]) -> CudaOnHost:
    return CudaOnHost([group.prim for group in groups])


@pytest.fixture(scope="module")
def opencl(groups: list[LoweredGroup]) -> OnOpencl:
    return OnOpencl([groups[place].prim for place in SOME])


@pytest.fixture(scope="module")
def unfused(groups: list[LoweredGroup]) -> tuple[OnOpencl, CudaOnHost]:
    """Return kernels of the first cases, which round products before adding them."""
    prims = [group.prim for group in groups[:UNFUSED]]
    return OnOpencl(prims, contracts=False), CudaOnHost(prims, contracts=False)


KNOWN: dict[int, np.ndarray] = {}


def meaning(place: int, groups: list[LoweredGroup]) -> np.ndarray:
    """Return the interpreter's result of a case's launches, computed once."""
    if place not in KNOWN:
        KNOWN[place] = interpreter.run(groups[place].prim, CASES[place].inputs, groups[place].constants)
    return KNOWN[place]


@pytest.mark.parametrize("place", PLACES, ids=LABELS)
def test_meaning(place: int, groups: list[LoweredGroup]) -> None:
    case: ProductCase = CASES[place]
    case.check(meaning(place, groups))


@pytest.mark.parametrize("place", SOME, ids=LABELS[::2])
def test_opencl(place: int, groups: list[LoweredGroup], opencl: OnOpencl) -> None:
    case = CASES[place]
    case.check(opencl(groups[place].prim, case.inputs, groups[place].constants))


@pytest.mark.parametrize("place", PLACES, ids=LABELS)
def test_cuda_text(place: int, groups: list[LoweredGroup], cuda: CudaOnHost) -> None:
    case = CASES[place]
    case.check(cuda(groups[place].prim, case.inputs, groups[place].constants))


def test_cuda_text_compiles(cuda: CudaOnHost) -> None:
    assert_nvrtc_takes(cuda.source)


def test_small_results_are_shared_out_along_the_reduction(groups: list[LoweredGroup]) -> None:
    counts = {label: len(launches(group.prim)) for label, group in zip(LABELS, groups, strict=True)}
    assert counts["float-shared-out-reduction"] == 2
    assert counts["float-pointwise"] == 1


def test_transposed_convolutions_are_a_product_for_each_phase(groups: list[LoweredGroup]) -> None:
    counts = {label: len(launches(group.prim)) for label, group in zip(LABELS, groups, strict=True)}
    assert counts["float-transposed-phases"] == 4
    # taps reach two of three row phases and one of two column phases
    assert counts["int8-transposed-kernel-below-stride"] == 6
    assert counts["float-transposed-one-dimension"] == 3
    assert counts["float-transposed-depthwise"] == 1


@pytest.mark.parametrize("place", PLACES[:UNFUSED], ids=LABELS[:UNFUSED])
def test_sums_without_fused_multiply_adds_are_the_same_everywhere(
    place: int, groups: list[LoweredGroup], unfused: tuple[OnOpencl, CudaOnHost]
) -> None:
    case, group = CASES[place], groups[place]
    expected = meaning(place, groups)
    for run in unfused:
        np.testing.assert_array_equal(run(group.prim, case.inputs, group.constants), expected)


def test_products_that_are_not_fused_are_said_so_in_cuda(groups: list[LoweredGroup]) -> None:
    for group in groups[:UNFUSED]:
        kernels = device_kernels(group.prim, "unfused")
        assert "__fmul_rn(" in device_source(kernels, "cuda", contracts=False)


@pytest.mark.parametrize("place", SOME, ids=LABELS[::2])
def test_small_devices_get_what_they_can_hold(place: int, groups: list[LoweredGroup]) -> None:
    features = replace(DEVICE, group_items=64, shared_bytes=4096)
    group = lower_group(CASES[place].group, features)
    verify(group.prim)
    kernels = device_kernels(group.prim, "same")
    for kernel in kernels:
        assert prod(kernel.block) <= 64
        assert kernel.shared_bytes <= 4096
    # kernels equal to those of larger devices have been checked
    theirs = device_kernels(groups[place].prim, "same")
    blocks = [[kernel.block for kernel in made] for made in (kernels, theirs)]
    if blocks[0] != blocks[1] or device_source(kernels, "opencl") != device_source(theirs, "opencl"):
        CASES[place].check(interpreter.run(group.prim, CASES[place].inputs, group.constants))
