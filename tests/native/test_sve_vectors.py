"""Vector code for AArch64 processors with vectors of 256 and 512 bits (SVE), emulated."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mlfc.relay import ir
from mlfc.target.features import LEVELS, Features
from mlfc.transform.lower_group import lower_group
from tests.native.foreign_programs import KernelRun, emulator_of, executed, linked_c, results
from tests.native.kernel_runner import group_of
from tests.native.test_c_vectors import FILES, expected_of

AARCH64 = "aarch64-linux-gnu"
CPU = "max,sve-default-vector-length={}"
SVE = LEVELS.get("aarch64").levels[-1]


@pytest.mark.parametrize(("nbytes", "products"), [(32, "+i8mm"), (32, ""), (64, "+i8mm"), (64, "")])
def test_vector_functions(nbytes: int, products: str, tmp_path: Path) -> None:
    found = expected_of(FILES[0])
    runs = [KernelRun(prim, arrays) for prim, arrays, _ in found]
    flags = ["-O1", "-ffp-contract=off", f"-mcpu=generic+sve{products}", f"-msve-vector-bits={8 * nbytes}"]
    linked_c(runs, flags, AARCH64, tmp_path / "program")
    outputs = results(runs, tmp_path / "program", AARCH64, CPU.format(nbytes))
    for (prim, _, expected), output in zip(found, outputs, strict=True):
        np.testing.assert_array_equal(output, expected, err_msg=prim.name)


@cache
def float_layer() -> KernelRun:
    """Return a 3x3 convolution from 16 to 16 channels."""
    rng = np.random.default_rng(7)
    x = ir.Var("x", ir.TensorType((1, 8, 8, 16), "float32"))
    weights = rng.standard_normal((3, 3, 16, 16)).astype(np.float32)
    call = ir.call("nn.conv2d", [x, ir.const(weights)], padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO")
    lowered = lower_group(group_of(ir.call("nn.relu", [call]), [x]), Features())
    return KernelRun(lowered.prim, [rng.standard_normal((1, 8, 8, 16)).astype(np.float32), *lowered.constants])


def test_wide_vectors_save_instructions_and_keep_the_bits(tmp_path: Path) -> None:
    emulator_of(AARCH64)
    found = {}
    for bits, cpu in (("", "generic+v8_2a"), ("256", SVE.zig), ("512", SVE.zig)):
        place = tmp_path / f"vectors{bits}"
        place.mkdir()
        flags = ["-O2", f"-mcpu={cpu}", *([f"-msve-vector-bits={bits}"] if bits else [])]
        linked_c([float_layer()], flags, AARCH64, place / "program")
        nbytes = int(bits or 256) // 8
        found[bits] = executed(float_layer(), place / "program", AARCH64, CPU.format(nbytes))
    for bits in ("256", "512"):
        np.testing.assert_array_equal(found[bits][0], found[""][0])
    assert found["256"][1] < 0.85 * found[""][1]
    assert found["512"][1] < 0.85 * found["256"][1]
