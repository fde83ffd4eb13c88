"""Kernels on an 8-bit core with 16-bit int: the host's results, and data that never runs into the stack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import BudgetError
from mlfc.micro.run.emulator import emulated_factory
from mlfc.micro.run.firmware_run import write_printed
from mlfc.relay import ir
from mlfc.verify.litert import LiteRtReference
from tests.conftest import WATCHDOG
from tests.emulator.conftest import need_board
from tests.harness import module_of
from tests.native.test_dsp_kernels import ALL, requantized_sums, weights_of
from tests.native.test_kernels import random_integers
from tests.tflite_cases import Case, quantized_cases
from tests.unit.test_tflite_ops import inputs_of, model_of


@pytest.fixture(autouse=True)
def _tools() -> None:
    need_board("arduino_mega")


def convolution(name: str) -> tuple[mlfc.factory.Factory, dict[str, np.ndarray]]:
    case = ALL[name]
    x = random_integers(np.random.default_rng(0), "int8", case.data)

    def body(v):
        return requantized_sums(v["x"], case, weights_of(case), np.arange(case.filters, dtype=np.int32) * 7, 0.002)

    return mlfc.build(module_of({"x": x}, {"y": body}), "c -mcpu=avr", module_name="model"), {"x": x}


@pytest.mark.parametrize(
    "name", ["3x3_stride_asymmetric", "depthwise_multiplier", "row_kernel", "two_channels_stride_three"]
)
def test_convolutions_are_what_the_host_computes(name: str) -> None:
    factory, inputs = convolution(name)
    made = emulated_factory(factory, need_board("arduino_mega"))
    run = made.measure(inputs)
    np.testing.assert_array_equal(run.outputs["y"], factory.runtime.run(inputs)["y"])
    # every core needs at least one cycle per multiply-accumulate
    assert run.instructions is None
    assert run.cycles is not None
    assert run.cycles > sum(entry.macs for entry in made.operators)


# of the 8 KiB; the rest is for the stack and the measuring code
_RAM = 5600
_TABLES = {"SOFTMAX": 1100, **dict.fromkeys(
    ("LOGISTIC", "TANH", "HARD_SWISH", "LEAKY_RELU", "ELU", "EXP", "ABS", "GELU"), 260)}  # fmt: skip


def _ram(case: Case) -> int:
    """Return the approximate RAM of an operator: its tensors, including constants, and its tables."""
    sizes = (int(np.prod(tensor.shape)) * np.dtype(tensor.dtype).itemsize for tensor in case.tensors)
    return sum(-(-size // 64) * 64 for size in sizes) + _TABLES.get(case.op.code, 0)


def _images() -> list[list[Case]]:
    """Return all quantized operators in as few groups as the board's RAM allows."""
    groups: list[list[Case]] = []
    left: list[int] = []  # RAM left for each group
    for ram, case in sorted(((_ram(case), case) for case in quantized_cases(7, many=56)), key=lambda each: -each[0]):
        place = next((place for place, room in enumerate(left) if ram <= room), len(groups))
        if place == len(groups):
            groups.append([])
            left.append(_RAM)
        groups[place].append(case)
        left[place] -= ram
    return groups


IMAGES = _images()
# an int overflow ends the firmware
_TRAPS = (
    "-O2 -fsanitize=signed-integer-overflow,shift,integer-divide-by-zero -fsanitize=float-cast-overflow "
    "-fsanitize-undefined-trap-on-error"
)


def _filled(inputs: dict[str, np.ndarray], end: str) -> dict[str, np.ndarray]:
    """Return the inputs with all integers at the minimum or maximum of their dtype."""
    return {
        name: value if value.dtype.kind == "f" else np.full_like(value, getattr(np.iinfo(value.dtype), end))
        for name, value in inputs.items()
    }


@pytest.mark.parametrize("cases", IMAGES, ids=lambda cases: f"{cases[0].name}_and_{len(cases) - 1}_more")
def test_every_quantized_operator_gives_what_litert_gives(cases: list[Case]) -> None:
    module, params = mlfc.import_model(model_of(cases))
    factory = mlfc.build(module, "c -mcpu=avr", params, module_name="model")
    made = emulated_factory(factory, need_board("arduino_mega"), cflags=_TRAPS, timeout=WATCHDOG)
    references = [LiteRtReference(model_of([case])) for case in cases]
    random = inputs_of(cases, np.random.default_rng(3))
    for inputs in (random, _filled(random, "min"), _filled(random, "max")):
        found = made.run(inputs)
        for case, reference in zip(cases, references, strict=True):
            expected = reference.run({name: inputs[name] for name in case.inputs})
            for name in case.op.outputs:
                np.testing.assert_array_equal(found[name], expected[name], name)


def test_floats_are_what_the_host_computes() -> None:
    x = np.linspace(-4, 4, 24, dtype=np.float32).reshape(2, 12)
    weight = ir.Constant(np.linspace(-1, 1, 60, dtype=np.float32).reshape(5, 12))

    def body(v):
        return ir.call("nn.softmax", [ir.call("nn.dense", [v["x"], weight], units=5)])

    factory = mlfc.build(module_of({"x": x}, {"y": body}), "c -mcpu=avr")
    found = emulated_factory(factory, need_board("arduino_mega")).run({"x": x})["y"]
    np.testing.assert_allclose(found, factory.runtime.run({"x": x})["y"], rtol=1e-5, atol=1e-7)


def test_rounding_to_even_is_what_the_host_computes() -> None:
    numbers = [0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388607.5, 8388609.0, -3e9, -0.0, np.inf, np.nan, 126.5, -127.51]
    x = np.array(numbers, np.float32)
    scale, zero = ir.const(np.float32(1.0)), ir.const(np.int32(0))
    outputs = {
        "rounded": lambda v: ir.call("round", [v["x"]]),
        # ONNX's rounding when it quantizes
        "codes": lambda v: ir.call("qnn.quantize", [v["x"], scale, zero], out_dtype="int8", rounding="TONEVEN"),
    }
    factory = mlfc.build(module_of({"x": x}, outputs), "c -mcpu=avr")
    found = emulated_factory(factory, need_board("arduino_mega")).run({"x": x})
    for name, expected in factory.runtime.run({"x": x}).items():
        np.testing.assert_array_equal(found[name], expected, name)
        np.testing.assert_array_equal(np.signbit(found[name]), np.signbit(expected), name)


def test_data_that_would_run_into_the_stack_is_refused() -> None:
    factory, _ = convolution("first_layer")
    with pytest.raises(BudgetError, match="with what the project reserves for its stack"):
        emulated_factory(factory, need_board("arduino_mega"))


def test_only_files_of_firmware_are_written(tmp_path: Path) -> None:
    printed = "\x1b[32mopen outputs.bin.\n\x1b[0m\x1b[32mdata 00ff.\n\x1b[0mdata 10.\nhello.\nopen ../evil.\ndata 41.\n"
    assert write_printed(printed + "open report.txt.\ndata 4.\ndata zz.\nexit 7.\n", tmp_path)[0] == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs.bin", "report.txt"]
    assert (tmp_path / "outputs.bin").read_bytes() == b"\x00\xff\x10"
    assert not (tmp_path.parent / "evil").exists()
