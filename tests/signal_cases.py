"""TFLite Micro's signal operators, one per case, with inputs for a few runs; ``golden/signal.npz`` has its results.

It also has SUM of int8 and int16, because LiteRT's reference kernel reads their bytes as uint8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.tflite_builder import Op, T

Array = npt.NDArray[Any]
RUNS = 6
_TYPES = {"float32": 0, "int32": 2, "int16": 7}
_HIGH = {"int8": 1 << 7, "int16": 1 << 15, "int32": 1 << 31, "uint32": 1 << 32, "uint64": 1 << 62}


@dataclass
class Case:
    """Operators with their tensors, and the input data of each run."""

    name: str
    ops: list[Op]
    tensors: list[T]
    outputs: Sequence[str]
    runs: list[dict[str, Array]] = field(default_factory=list)
    tolerance: float = 0.0


class _Cases:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.found: list[Case] = []

    def values(self, shape: Sequence[int], dtype: str, run: int) -> Array:
        """Return small numbers first, then larger ones up to the full range of the dtype, zeros, and the extremes."""
        if dtype == "float32":
            return self.rng.normal(size=shape).astype(np.float32)
        high = _HIGH[dtype]
        low = 0 if dtype.startswith("u") else -high
        if run == RUNS - 2:
            return np.zeros(shape, dtype)
        if run == RUNS - 1:
            return self.rng.choice(np.array([low, high - 1, 1], dtype), shape)
        share = min((1 << 12, 1 << 6, 2, 1)[run], high)
        return self.rng.integers(low // share, high // share, shape).astype(dtype)

    def add(
        self, name: str, operator: str, inputs: Sequence[T | tuple[tuple[int, ...], str]],
        outputs: Sequence[tuple[tuple[int, ...], str]], options: Mapping[str, Any] | None = None,
        *, tolerance: float = 0.0, caps: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Add a case; an input is a constant, or a shape and dtype that are fed. `caps` limits the values of inputs."""
        given = [
            T(f"{name}/in{k}", item.shape, item.dtype, item.value) if isinstance(item, T) else
            T(f"{name}/in{k}", *item) for k, item in enumerate(inputs)
        ]  # fmt: skip
        results = [T(f"{name}/out{k}", *item) for k, item in enumerate(outputs)]
        name_of = operator if operator.isupper() and operator != "PCAN" else f"Signal{operator}"
        op = Op(f"CUSTOM {name_of}", [t.name for t in given], [t.name for t in results], custom=options)
        runs = []
        for run in range(RUNS):
            fed = {t.name: self.values(t.shape, t.dtype, run) for t in given if t.value is None}
            for place, most in (caps or {}).items():
                fed[given[place].name] = np.abs(fed[given[place].name]).astype(given[place].dtype) % (most + 1)
            runs.append(fed)
        self.found.append(Case(name, [op], [*given, *results], op.outputs, runs, tolerance))

    def constant(self, *shape: int, low: int = -(1 << 15), high: int = 1 << 15) -> T:
        """Return an int16 constant."""
        return T("", shape, "int16", self.rng.integers(low, high, shape))


def signal_cases() -> list[Case]:
    """Return a case of each operator, for some with several options."""
    c = _Cases(3)
    c.add("window", "Window", [((2, 12), "int16"), c.constant(12)], [((2, 12), "int16")], {"shift": 12})
    c.add("auto_scale", "FftAutoScale", [((9,), "int16")], [((9,), "int16"), ((), "int32")], {})
    for dtype, lengths in (("int16", (4, 16, 60)), ("int32", (50, 64)), ("float32", (54,))):
        tolerance = 2e-6 if dtype == "float32" else 0.0
        for length in lengths:
            shape, halves = (length - 3,) if length == 60 else (2, length) if length == 16 else (length,), length + 2
            options = {"T": _TYPES[dtype], "fft_length": length}
            c.add(f"rfft_{dtype}_{length}", "Rfft", [(shape, dtype)], [((*shape[:-1], halves), dtype)], options,
                  tolerance=tolerance)  # fmt: skip
            whole = (*shape[:-1], length)
            c.add(f"irfft_{dtype}_{length}", "Irfft", [((*shape[:-1], halves), dtype)], [(whole, dtype)], options,
                  tolerance=tolerance)  # fmt: skip
    c.add("energy", "Energy", [((20,), "int16")], [((10,), "uint32")], {"start_index": 0, "end_index": 10})
    _filters(c)
    for prefill in (False, True):
        for size, step, length in ((10, 4, 4), (10, 4, 12), (8, 4, 8), (3, 5, 5)):
            if prefill and size < step:
                continue
            frames = (2, length // step, size)
            options = {"frame_size": size, "frame_step": step, "prefill": prefill}
            c.add(f"framer_{size}_{length}_{prefill}", "Framer", [((2, length), "int16")],
                  [(frames, "int16"), ((), "bool")], options)  # fmt: skip
    for delay in (0, 3, 11):
        c.add(f"delay_{delay}", "Delay", [((2, 4), "int16")], [((2, 4), "int16")], {"delay_length": delay})
    for left, right, step in ((2, 1, 2), (0, 0, 1), (1, 2, 1), (0, 2, 3)):
        options = {"num_channels": 3, "stacker_left_context": left, "stacker_right_context": right,
                   "stacker_step": step}  # fmt: skip
        size = 3 * (left + right + 1)
        c.add(f"stacker_{left}{right}{step}", "Stacker", [((3,), "int16")], [((size,), "int16"), ((), "bool")], options)
    for slots, cycles in ((5, 0), (3, 1)):
        c.add(f"slots_{slots}", "CIRCULAR_BUFFER", [((1, 1, 2, 3), "int8")], [((1, slots, 2, 3), "int8")],
              {"cycles_max": cycles} if cycles else None)  # fmt: skip
        c.found[-1].tensors[-1].is_variable = True
    for dtype in ("int16", "float32"):
        for frames, size, step in ((1, 10, 4), (5, 10, 4), (2, 6, 6)):
            options = {"T": _TYPES[dtype], "frame_step": step}
            c.add(f"overlap_{dtype}_{frames}_{size}", "OverlapAdd", [((2, frames, size), dtype)],
                  [((2, frames * step), dtype)], options)  # fmt: skip
    _sums(c)
    return c.found


def _filters(c: _Cases) -> None:
    widths = np.array([4, 4, 8, 4, 12, 0], np.int16)
    starts = np.array([0, 4, 8, 16, 20, 30], np.int16)
    places = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int16)
    tables = [T("", (len(values),), "int16", values) for values in (starts, places, widths)]
    weights = [c.constant(int(widths.sum()), low=0, high=4096) for _ in range(2)]
    c.add("filter_bank", "FilterBank", [((33,), "uint32"), *weights, *tables], [((5,), "uint64")], {"num_channels": 5})
    roots = [((40,), "uint64"), ((), "int32")]
    c.add("square_root", "FilterBankSquareRoot", roots, [((40,), "uint32")], {}, caps={1: 5})
    for bits, scale in ((3, 64), (0, 1600), (5, 1 << 16)):
        options = {"input_correction_bits": bits, "output_scale": scale}
        c.add(f"log_{bits}", "FilterBankLog", [((50,), "uint32")], [((50,), "int16")], options)
    for clamping in (False, True):
        options = {
            "alternate_one_minus_smoothing": 16056, "alternate_smoothing": 328, "clamping": clamping,
            "min_signal_remaining": 819, "num_channels": 7, "one_minus_smoothing": 15975, "smoothing": 409,
            "smoothing_bits": 10, "spectral_subtraction_bits": 14,
        }  # fmt: skip
        c.add(f"subtraction_{clamping}", "FilterBankSpectralSubtraction", [((7,), "uint32")],
              [((7,), "uint32"), ((7,), "uint32")], options)  # fmt: skip
    gains = c.constant(125, low=0)
    for shift in (6, 20):
        c.add(f"gain_{shift}", "PCAN", [((60,), "uint32"), ((60,), "uint32"), gains], [((60,), "uint32")],
              {"snr_shift": shift})  # fmt: skip


def _sums(c: _Cases) -> None:
    for dtype, zero in (("int8", 4), ("int16", 0)):
        for scale in (0.1, 0.3):
            name = f"sum_{dtype}_{scale}"
            tensors = [T(f"{name}/x", (3, 7), dtype, scale=0.1, zero=zero), T(f"{name}/axis", (1,), "int32", [1])]
            tensors.append(T(f"{name}/y", (3,), dtype, scale=scale, zero=zero))
            op = Op("SUM", [f"{name}/x", f"{name}/axis"], [f"{name}/y"], "ReducerOptions")
            runs = [{f"{name}/x": c.values((3, 7), dtype, run)} for run in range(RUNS)]
            c.found.append(Case(name, [op], tensors, op.outputs, runs))


def front_end() -> Case:
    """Return a complete audio front end, from samples to the stacked features of the last frames."""
    size, step, bins, channels = 48, 16, 33, 5
    rng = np.random.default_rng(5)
    widths = np.array([4, 4, 4, 8, 8, 4], np.int16)
    starts = np.array([1, 5, 9, 13, 21, 29], np.int16)
    places = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int16)
    up = np.concatenate([np.linspace(0, 4096, width) for width in widths]).astype(np.int16)
    window = np.rint(4096 * np.hanning(size)).astype(np.int16)
    gains = rng.integers(0, 1 << 14, 125).astype(np.int16)
    constants = {"window": window, "up": up, "down": 4096 - up, "starts": starts, "places": places, "widths": widths,
                 "gains": gains}  # fmt: skip
    tensors = [T(name, value.shape, "int16", value) for name, value in constants.items()]
    tensors += [
        T("flat", (1,), "int32", [size]), T("samples", (step,), "int16"), T("frames", (1, size), "int16"),
        T("full", (), "bool"), T("frame", (size,), "int16"), T("windowed", (size,), "int16"),
        T("scaled", (size,), "int16"), T("bits", (), "int32"), T("spectrum", (2 * bins,), "int16"),
        T("energy", (bins,), "uint32"), T("bands", (channels,), "uint64"), T("roots", (channels,), "uint32"),
        T("clean", (channels,), "uint32"), T("noise", (channels,), "uint32"), T("gained", (channels,), "uint32"),
        T("features", (channels,), "int16"), T("stack", (3 * channels,), "int16"), T("ready", (), "bool"),
    ]  # fmt: skip
    frames = {"frame_size": size, "frame_step": step, "prefill": True}
    noise = {
        "alternate_one_minus_smoothing": 16056, "alternate_smoothing": 328, "clamping": False,
        "min_signal_remaining": 819, "num_channels": channels, "one_minus_smoothing": 15975, "smoothing": 409,
        "smoothing_bits": 10, "spectral_subtraction_bits": 14,
    }  # fmt: skip
    stacks = {"num_channels": channels, "stacker_left_context": 1, "stacker_right_context": 1, "stacker_step": 1}
    steps: list[tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]] = [
        ("Window", ["frame", "window"], ["windowed"], {"shift": 12}),
        ("FftAutoScale", ["windowed"], ["scaled", "bits"], {}),
        ("Rfft", ["scaled"], ["spectrum"], {"T": _TYPES["int16"], "fft_length": 2 * (bins - 1)}),
        ("Energy", ["spectrum"], ["energy"], {"start_index": 0, "end_index": bins}),
        ("FilterBank", ["energy", "up", "down", "starts", "places", "widths"], ["bands"], {"num_channels": channels}),
        ("FilterBankSquareRoot", ["bands", "bits"], ["roots"], {}),
        ("FilterBankSpectralSubtraction", ["roots"], ["clean", "noise"], noise),
        ("PCAN", ["clean", "noise", "gains"], ["gained"], {"snr_shift": 6}),
        ("FilterBankLog", ["gained"], ["features"], {"input_correction_bits": 3, "output_scale": 1600}),
        ("Stacker", ["features"], ["stack", "ready"], stacks),
    ]
    ops = [Op("CUSTOM SignalFramer", ["samples"], ["frames", "full"], custom=frames),
           Op("RESHAPE", ["frames", "flat"], ["frame"], "ReshapeOptions", {"NewShape": [size]})]  # fmt: skip
    ops += [Op(f"CUSTOM Signal{name}", given, made, custom=options) for name, given, made, options in steps]
    time = np.arange(9 * step)
    sound = 9000 * np.sin(time * (0.1 + time / 400)) + rng.normal(scale=800, size=time.size)
    runs = [{"samples": part.astype(np.int16)} for part in sound.reshape(9, step)]
    return Case("front_end", ops, tensors, ["stack", "ready", "noise"], runs)
