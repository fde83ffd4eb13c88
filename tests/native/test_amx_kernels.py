"""Kernels with AMX tiles: on this processor, in their form without tiles, and with tiles in plain C."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.c import print_function
from mlfc.library.toolchain import NATIVE
from mlfc.relay import ir
from mlfc.support.dims import Symbol
from mlfc.support.platforms import this_platform
from mlfc.target.features import Features, Tuned, without_transforms
from mlfc.target.target import parse_target
from mlfc.tir import interpreter
from mlfc.tir import ir as tir
from mlfc.tir.parallel import parallelize
from mlfc.tir.parameters import with_numbers
from mlfc.tir.visitor import walk
from mlfc.transform.lower_group import LoweredGroup, kernel_key, lower_group
from tests.c_files import print_file
from tests.conftest import need
from tests.native.kernel_runner import group_of
from tests.native.llvm_functions import run_kernel
from tests.native.test_i8mm_kernels import dense_layer
from tests.native.test_mve_kernels import PLAIN, layer, requantized, scalar
from tests.native.test_open_extents import result as run_open
from tests.shared_library import compile_shared
from tests.verify_tir import verify

Array = npt.NDArray[Any]

TILES = parse_target("c -mcpu=sapphirerapids").features
VECTORS = parse_target("c -mcpu=x86-64-v4").features
STAND_IN = Path(__file__).parent / "stand_ins" / "amx" / "tiles.h"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off")
INSTRUCTIONS = ("-march=x86-64-v4", "-mavx512vnni", "-mamx-tile", "-mamx-int8", "-mamx-bf16")
PLAN = "mlfc.isa.amx.templates.AmxPlan.pays"


def convolution(
    shape: tuple[int, ...], kernel: tuple[int, int], filters: int, *, dtype: str = "int8", **attrs: Any
) -> tuple[ir.Function, list[Array]]:
    """Return a convolution with static shapes and its requantization, and data that includes extreme values."""
    rng = np.random.default_rng(filters)
    x = ir.Var("x", ir.TensorType(shape, dtype))
    weights = rng.integers(-127, 128, (*kernel, shape[3], filters)).astype(np.int8)
    weights[..., 0] = -128
    zero = 3 if dtype == "int8" else 130
    call = ir.call(
        "qnn.conv2d", [x, ir.const(weights), scalar(zero, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)],
        data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32", **attrs,
    )  # fmt: skip
    limits = np.iinfo(dtype)
    data = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    data[:, ::2] = limits.min
    return group_of(requantized(call, np.linspace(0.0001, 0.002, filters), "DOUBLE"), [x]), [data]


LAYERS: dict[str, Callable[[], tuple[ir.Function, list[Array]]]] = {
    # names of layers with a residual addition
    **{
        name: partial(layer, name, zero, rounding, 0.01)
        for name, zero, rounding in [
            ("1x1", -128, "DOUBLE"), ("1x1_odd_plane", 127, "SINGLE"), ("1x1_wide_odd_plane", 3, "TONEVEN"),
            ("1x1_stride", 0, "DOUBLE"), ("3x3", -128, "DOUBLE"), ("3x3_large_column", 127, "TONEVEN"),
            ("3x3_stride", -128, "DOUBLE"), ("stride_beyond_kernel", 5, "DOUBLE"), ("10x4", -128, "SINGLE"),
        ]
    },
    # one tile behind four, or behind two; pairs of vectors and single ones; the last filters of a panel
    "rows_of_tiles": partial(convolution, (1, 3, 40, 8), (3, 3), 56, padding=(1, 1, 1, 1)),
    "dilated": partial(convolution, (1, 9, 11, 20), (3, 3), 20, padding=(2, 2, 2, 2), dilation=(2, 2)),
    "images": partial(convolution, (2, 5, 7, 64), (1, 3), 112),
    "unsigned": partial(convolution, (1, 6, 6, 32), (3, 3), 40, dtype="uint8", padding=(1, 1, 1, 1)),
    **{f"dense-{sizes}": partial(dense_layer, *sizes) for sizes in [(2, 8, 1), (17, 64, 20), (49, 13, 70)]},
}  # fmt: skip


def bfloat_layer(
    shape: tuple[int, ...], kernel: tuple[int, int], filters: int, **attrs: Any
) -> tuple[ir.Function, list[Array]]:
    """Return a bfloat16 convolution with a bias, or a dense layer, and data."""
    rng = np.random.default_rng(filters)

    def numbers(*sizes: int) -> Array:
        return rng.standard_normal(sizes).astype(ml_dtypes.bfloat16)

    x = ir.Var("x", ir.TensorType(shape, "bfloat16"))
    if len(shape) == 2:
        call = ir.call("nn.dense", [x, ir.const(numbers(filters, shape[1]))], units=filters)
    else:
        weights = ir.const(numbers(*kernel, shape[3], filters))
        call = ir.call("nn.conv2d", [x, weights], data_layout="NHWC", kernel_layout="HWIO", **attrs)
    biased = ir.call("nn.bias_add", [call, ir.const(numbers(filters))], axis=len(shape) - 1)
    return group_of(ir.call("nn.relu", [biased]), [x]), [numbers(*shape)]


BFLOATS: dict[str, Callable[[], tuple[ir.Function, list[Array]]]] = {
    "bfloat_3x3": partial(bfloat_layer, (1, 9, 14, 24), (3, 3), 40, padding=(1, 1, 1, 1)),
    "bfloat_7x7_stride": partial(bfloat_layer, (1, 17, 19, 3), (7, 7), 17, strides=(2, 2), padding=(3, 3, 3, 3)),
    "bfloat_dilated": partial(bfloat_layer, (2, 9, 10, 66), (3, 3), 32, dilation=(2, 2), padding=(2, 2, 2, 2)),
    "bfloat_dense": partial(bfloat_layer, (50, 97), (1, 1), 70),
}
LAYERS |= BFLOATS


@cache
def lowered(name: str) -> tuple[LoweredGroup, list[Array]]:
    """Return a layer lowered to tiles and its inputs."""
    group, inputs = LAYERS[name]()
    with mock.patch(PLAN, True):  # small enough for the interpreter, hence too small for tiles by default
        return lower_group(group, TILES), inputs


@cache
def plain(name: str) -> LoweredGroup:
    return lower_group(LAYERS[name]()[0], PLAIN)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    """Return the results of plain C loops."""
    functions = [print_function(plain(name).prim, function_of(name)) for name in LAYERS]
    place = tmp_path_factory.mktemp("plain") / "plain.so"
    library = ctypes.CDLL(str(compile_shared({"plain.c": print_file(functions).encode()}, place, ("-O1",))))
    return {
        name: run_kernel(
            getattr(library, function_of(name)), plain(name).prim, [*lowered(name)[1], *plain(name).constants]
        )
        for name in LAYERS
    }


@cache
def source() -> str:
    """Return the C of all layers."""
    functions = []
    for name in LAYERS:
        prim = lowered(name)[0].prim
        verify(prim)
        functions.append(print_function(prim, function_of(name)))
        assert ("mlf_tiles_bf16" if name in BFLOATS else "mlf_tiles_u8s8") in functions[-1].text
    return print_file(functions)


def function_of(name: str) -> str:
    return re.sub(r"\W", "_", f"layer_{name}")


def assert_right(library: Any, expected: dict[str, Array]) -> None:
    """Compare a library's results with those of plain loops."""
    for name in LAYERS:
        ours, inputs = lowered(name)
        found = run_kernel(getattr(library, function_of(name)), ours.prim, [*inputs, *ours.constants])
        assert_near(found, expected[name], name)


def assert_near(found: Array, expected: Array, name: str) -> None:
    """Compare results: integers must be equal; bfloat16 may be a neighbour if the order of the sum differs."""
    if name not in BFLOATS:
        np.testing.assert_array_equal(found, expected, name)
        return
    ours, theirs = found.astype(np.float64), expected.astype(np.float64)
    largest = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=2**-7, atol=2**-14 * largest, err_msg=name)
    assert np.mean(ours == theirs) > 0.95


def test_the_meaning_of_the_instructions(expected: dict[str, Array]) -> None:
    for name in ("3x3_stride", "dense-(17, 64, 20)", "bfloat_7x7_stride"):
        ours, inputs = lowered(name)
        assert_near(interpreter.run(ours.prim, inputs, ours.constants), expected[name], name)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("flags", [(NATIVE,), ()], ids=["native", "without"])
def test_layers_are_what_plain_loops_compute(
    flags: tuple[str, ...], compiler: str, expected: dict[str, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use tiles if this processor has them."""
    monkeypatch.setenv("CC", need(compiler, compiler))
    files = {"layers.c": source().encode()}
    library = ctypes.CDLL(str(compile_shared(files, tmp_path / "layers.so", (*STRICT, "-O1", *flags))))
    assert_right(library, expected)


def test_tiles_in_plain_c_compute_the_same(
    expected: dict[str, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the tile code on any processor; the program ends where the instructions would fault."""
    monkeypatch.setenv("CC", need("gcc", "gcc"))
    files = {"layers.c": source().encode()}
    flags = (*STRICT[:-2], "-O1", "-ffp-contract=off", "-include", str(STAND_IN))
    library = ctypes.CDLL(str(compile_shared(files, tmp_path / "layers.so", flags)))
    assert_right(library, expected)
    assert library.products_of_tiles() > 1000
    assert library.open_tiles() == 0  # every kernel releases its tiles


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compilers_have_the_instructions(compiler: str, tmp_path: Path) -> None:
    if this_platform().arch != "x86_64":
        pytest.skip("requires compilers for x86-64: run it on such a machine")
    (tmp_path / "layers.c").write_text(source())
    command = [need(compiler, compiler), *STRICT, "-O1", *INSTRUCTIONS, "-S", "layers.c", "-o", "-"]
    text = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    wanted = {"ldtilecfg", "tileloadd", "tdpbusd", "tdpbf16ps", "tilestored", "tilerelease"}
    assert wanted <= set(re.findall(r"\bt\w+|\bldt\w+", text))


def test_processors_without_tiles_read_the_same_weights() -> None:
    for name in ("3x3", "rows_of_tiles", "images", "unsigned"):
        ours = lowered(name)[0]
        with_vectors = lower_group(LAYERS[name]()[0], VECTORS)
        weights = [
            {array.tobytes() for array in each.constants if array.dtype == np.int8} for each in (ours, with_vectors)
        ]
        assert weights[0] == weights[1], name


def test_levels_share_weights_that_measurements_arranged() -> None:
    group = convolution((1, 8, 8, 64), (3, 3), 64, padding=(1, 1, 1, 1))[0]
    chosen = {kernel_key(group) or "": {"tile": "2x3x4", "band": "2"}}
    ours = lower_group(group, replace(TILES, tuned=Tuned(chosen, chosen, is_borrowed=True)))
    vectors = lower_group(group, replace(VECTORS, tuned=Tuned(chosen, chosen)))
    assert "mlf_tiles" in print_function(ours.prim).text
    weights = [{array.tobytes() for array in each.constants if array.dtype == np.int8} for each in (ours, vectors)]
    assert weights[0] == weights[1]
    assert weights[0] != {array.tobytes() for array in lower_group(group, VECTORS).constants if array.dtype == np.int8}


def conv_of(shape: tuple[int, ...], kernel: int, filters: int) -> LoweredGroup:
    pad = (kernel // 2,) * 4
    return lower_group(convolution(shape, (kernel, kernel), filters, padding=pad)[0], TILES)


@pytest.mark.parametrize(
    ("shape", "kernel", "filters", "has_tiles"),
    [
        ((1, 16, 16, 32), 3, 32, True),
        ((1, 14, 14, 384), 1, 96, True),
        ((1, 28, 28, 32), 1, 192, False),  # too few products per stored sum
        ((1, 7, 7, 320), 1, 1280, True),
        ((1, 1, 1, 1280), 1, 1000, False),  # a single tile row
        ((1, 112, 112, 16), 1, 96, False),  # a quarter of a tile's depth
        ((1, 48, 48, 68), 1, 64, False),  # 17 groups of four bytes, which do not split into equal tiles
    ],
)
def test_tiles_where_they_are_faster(shape: tuple[int, ...], kernel: int, filters: int, has_tiles: bool) -> None:
    assert ("mlf_tiles" in print_function(conv_of(shape, kernel, filters).prim).text) == has_tiles


def of_batch(batch: Any, dtype: str) -> LoweredGroup:
    """Return a convolution with a static or a dynamic batch size."""
    rng = np.random.default_rng(5)
    x = ir.Var("x", ir.TensorType((batch, 16, 16, 32), dtype))
    attrs: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": (1, 1, 1, 1)}
    if dtype == "bfloat16":
        weights = ir.const(rng.standard_normal((3, 3, 32, 32)).astype(ml_dtypes.bfloat16))
        return lower_group(group_of(ir.call("nn.conv2d", [x, weights], attrs), [x]), TILES)
    codes = ir.const(rng.integers(-127, 128, (3, 3, 32, 32)).astype(np.int8))
    zeros = [scalar(3, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)]
    call = ir.call("qnn.conv2d", [x, codes, *zeros], {**attrs, "out_dtype": "int32"})
    return lower_group(group_of(requantized(call, np.linspace(0.0001, 0.002, 32), "DOUBLE"), [x]), TILES)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_tiles_take_a_batch_that_the_run_decides(dtype: str, tmp_path: Path) -> None:
    opened, known = of_batch(Symbol("n").dim, dtype), {count: of_batch(count, dtype) for count in (1, 3)}
    functions = [print_function(opened.prim, "opened")]
    functions += [print_function(group.prim, f"of_{count}") for count, group in known.items()]
    assert all("mlf_tiles" in function.text for function in functions)
    files = {"layers.c": print_file(functions).encode()}
    library = ctypes.CDLL(str(compile_shared(files, tmp_path / "layers.so", (NATIVE, "-O1"))))
    for count, group in known.items():
        found = run_open(library.opened, opened, with_numbers(opened.prim, [count]), [count])
        assert found == run_open(getattr(library, f"of_{count}"), group, group.prim, ())


def test_sums_of_bfloats_in_the_order_of_the_references() -> None:
    lowest = lower_group(LAYERS["bfloat_3x3"]()[0], without_transforms(TILES))
    assert "mlf_tiles" not in print_function(lowest.prim).text


def test_infinities_stay_in_their_row(tmp_path: Path) -> None:
    """Check rows of 97 elements: the second half of the last pair must not be the next row's first element."""
    ours = lowered("bfloat_dense")[0]
    files = {"layer.c": print_file([print_function(ours.prim, "layer")]).encode()}
    library = ctypes.CDLL(str(compile_shared(files, tmp_path / "layer.so", (NATIVE, "-O1"))))
    data = np.ones((50, 97), ml_dtypes.bfloat16)
    data[1::2] = np.inf
    found = run_kernel(library.layer, ours.prim, [data, *ours.constants])
    assert np.isfinite(found[::2].astype(np.float32)).all()


def test_threads_share_bands() -> None:
    prim = conv_of((1, 28, 28, 256), 3, 256).prim
    parts = [item for item in walk(parallelize(prim).body) if isinstance(item, tir.Parallel)]
    assert len(parts) == 1
    opened = [item for item in walk(parts[0].body) if isinstance(item, tir.Allocate) and item.buffer.name == "tiles"]
    assert opened  # each thread has its own tiles


def test_targets() -> None:
    for text in ("c -mcpu=x86-64-v4", "c -mcpu=x86-64-v4 -mattr=+avx512vnni", "llvm -mcpu=sapphirerapids"):
        assert not parse_target(text).features.has("amx")
    assert parse_target("c -mcpu=sapphirerapids").library_cpu == "sapphirerapids"
    assert dict(parse_target("c -mcpu=auto -mtriple=x86_64").features.levels)["sapphirerapids"].has("amx")
    assert isinstance(TILES, Features)
