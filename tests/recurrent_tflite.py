"""TFLite models of one recurrent layer with random weights, and LiteRT's results for several consecutive runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.tflite_builder import Op, T, build

Array = npt.NDArray[Any]
RELU, TANH = 1, 4
UNIT = 2.0**-12


RUNS = 7


@dataclass(frozen=True)
class Layer:
    """One layer: its tensors, with input ``x`` and output ``y``, and the input data of each run."""

    name: str
    tensors: list[T]
    op: Op
    frames: list[Array]

    def named(self) -> Layer:
        """Return the layer with its name as a prefix of its tensors' names."""
        front = f"{self.name}/"
        tensors = [replace(tensor, name=front + tensor.name) for tensor in self.tensors]
        lists = (self.op.inputs, self.op.outputs, self.op.intermediates)
        inputs, outputs, between = ([name and front + name for name in names] for names in lists)
        return replace(
            self, tensors=tensors, op=replace(self.op, inputs=inputs, outputs=outputs, intermediates=between)
        )


@dataclass(frozen=True)
class Model:
    """A model of several independent layers."""

    layers: list[Layer]

    @cached_property
    def data(self) -> bytes:
        """The content of the model file."""
        named = [layer.named() for layer in self.layers]
        tensors = [tensor for layer in named for tensor in layer.tensors]
        names = [layer.name for layer in self.layers]
        return build(tensors, [layer.op for layer in named], [f"{name}/x" for name in names], self.results)

    @property
    def results(self) -> list[str]:
        """The names of the layers' outputs."""
        return [name for layer in self.layers for name in layer.named().op.outputs]

    def feeds(self, run: int) -> dict[str, Array]:
        """Return the inputs of a run."""
        return {f"{layer.name}/x": layer.frames[run] for layer in self.layers}

    def expected(self) -> tuple[list[dict[str, Array]], dict[str, Array]]:
        """Return the outputs of LiteRT's reference kernels for each run, and the variables after the last run."""
        # imported here because the script that writes golden files runs without LiteRT
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        reference = Interpreter(
            model_content=self.data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
            experimental_preserve_all_tensors=True,
        )  # fmt: skip
        reference.allocate_tensors()
        places = {item["name"]: item["index"] for item in reference.get_tensor_details()}
        found = []
        for run in range(RUNS):
            for name, frame in self.feeds(run).items():
                reference.set_tensor(places[name], frame)
            reference.invoke()
            found.append({name: np.array(reference.get_tensor(places[name])) for name in self.results})
        variables = [tensor.name for layer in self.layers for tensor in layer.named().tensors if tensor.is_variable]
        return found, {name: np.array(reference.get_tensor(places[name])) for name in variables}


def _frames(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> list[Array]:
    if dtype != "float32":
        info = np.iinfo(dtype)
        return [rng.integers(info.min, info.max + 1, shape).astype(dtype) for _ in range(RUNS)]
    frames = [rng.standard_normal(shape).astype(np.float32) for _ in range(RUNS)]
    frames[1][:] = 0
    return frames


def svdf(
    name: str, kind: str = "int8", *, rank: int = 1, memory: int = 5, batch: int = 1, bias: bool = True,
    asymmetric: bool = False, activation: int = RELU, state: str = "int16", zero: int = 0,
) -> Layer:  # fmt: skip
    """Return an SVDF of `kind` int8, float or hybrid; an int8 one has the state dtype `state` and zero point `zero`."""
    rng = np.random.default_rng(len(name) + rank + memory)
    units, size = 6, 7
    filters = units * rank
    integer = kind == "int8"
    feature = rng.integers(-127, 128, (filters, size)).astype(np.int8)
    time = rng.integers(-3000, 3000, (filters, memory)).astype(np.int16)
    if not integer or state == "int8":
        time = rng.integers(-127, 128, time.shape).astype(np.int8)
    if kind == "float":
        feature, time = (rng.standard_normal(item.shape).astype(np.float32) for item in (feature, time))
    biases = rng.integers(-9000, 9000, units) if integer else rng.standard_normal(units)
    scales = (0.02, 0.008, 0.0003, 0.004, 0.05) if integer else (None, 0.01, 0.02, None, None)
    if kind == "float":
        scales = (None,) * 5
    if state == "int8":
        scales = (0.02, 0.008, 0.007, 0.3, 0.2)
    dtypes = ("int8", "int8", state, state, "int8") if integer else ("float32",) * 5
    tensors = [
        T("x", (batch, size), dtypes[0], scale=scales[0], zero=-3),
        T("feature", feature.shape, str(feature.dtype), feature, scales[1]),
        T("time", time.shape, str(time.dtype), time, scales[2]),
        T("bias", (units,), "int32" if integer else "float32", biases, scales[2] * scales[3] if integer else None),
        T("state", (batch, filters * memory), dtypes[3], scale=scales[3], zero=zero, is_variable=True),
        T("y", (batch, units), dtypes[4], scale=scales[4], zero=-20),
    ]
    inputs = ["x", "feature", "time", "bias" if bias else "", "state"]
    fields = {"Rank": rank, "FusedActivationFunction": activation, "AsymmetricQuantizeInputs": asymmetric}
    op = Op("SVDF", inputs, ["y"], "SVDFOptions", fields, version=3)
    return Layer(name, tensors, op, _frames(rng, (batch, size), dtypes[0]))


def lstm(
    name: str, kind: str = "int8", *, steps: int = 3, batch: int = 2, size: int = 5, cells: int = 6,
    units: int | None = None, couples_input: bool = False, peephole: bool = False, time_major: bool = False,
    cell_clip: float = 0.0, projection_clip: float = 0.0, projection_bias: bool = True, exponent: int = -11,
    zeros: tuple[int, int] = (0, 0), activation: int = TANH, asymmetric: bool = False, norm: bool = False,
) -> Layer:  # fmt: skip
    """Return an LSTM of `kind` int8, int16, float or hybrid.

    `units` adds a projection to that many units; `zeros` are the zero points of the hidden state and of the fifth
    intermediate.
    """
    rng = np.random.default_rng(len(name) + cells + steps)
    integer, projects = kind.startswith("int"), units is not None
    units = cells if units is None else units
    tensors: list[T] = []
    names = [""] * 24

    def add(position: int, title: str, shape: tuple[int, ...], dtype: str, scale: float | None, largest: int) -> None:
        if dtype == "float32":
            value: Array = rng.standard_normal(shape).astype(np.float32) * np.float32(0.4)
        else:
            value = rng.integers(-largest, largest + 1, shape)
        tensors.append(T(title, shape, dtype, value, scale))
        names[position] = title

    byte = "int8" if kind != "float" else "float32"
    wide = {"int8": "int32", "int16": "int64"}.get(kind, "float32")
    gates = [gate for gate in range(4) if gate or not couples_input]
    for gate in gates:
        add(1 + gate, f"input{gate}", (cells, size), byte, 0.008 + 0.001 * gate if byte == "int8" else None, 127)
        add(5 + gate, f"recurrent{gate}", (cells, units), byte, 0.006 + 0.001 * gate if byte == "int8" else None, 127)
        add(12 + gate, f"bias{gate}", (cells,), wide, None, 5000 if kind != "int16" else 1 << 21)
    if peephole:
        for gate in range(1 if couples_input else 0, 3):
            kept = ("int16" if integer else byte), (0.0001 + 0.00002 * gate if byte == "int8" else None)
            add(9 + gate, f"peephole{gate}", (cells,), *kept, 3000 if integer else 127)
    if norm:
        kept = ("int16", 0.00004) if integer else ("float32", None)
        for gate in gates:
            add(20 + gate, f"norm{gate}", (cells,), kept[0], kept[1] and kept[1] + 0.00001 * gate, 32000)
    if projects:
        add(16, "projection", (units, cells), byte, 0.01 if byte == "int8" else None, 127)
        if projection_bias:
            add(17, "projection_bias", (units,), wide, None, 3000)
    hidden, shown = zeros
    data = kind if integer else "float32"
    state = (0.0078, hidden) if integer else (None, 0)
    if kind == "int16":
        state = (2.0**-15, 0)
    shape = (steps, batch, size) if time_major else (batch, steps, size)
    tensors += [
        T("x", shape, data, scale=None if not integer else 0.02 if kind == "int8" else 0.0001,
          zero=5 if kind == "int8" else 0),
        T("state", (batch, units), data, scale=state[0], zero=state[1], is_variable=True),
        T("cell", (batch, cells), "int16" if integer else "float32", scale=2.0**exponent if integer else None,
          is_variable=True),
        T("y", (*shape[:2], units), data, scale=state[0], zero=state[1]),
        *(T(f"between{index}", (), *(("int16", None, 0.0003 + 0.0001 * index) if norm and integer else ("float32",)))
          for index in range(4)),
        T("shown", (), "int8" if integer else "float32", scale=0.0071 if projects else 0.0078, zero=shown),
    ]  # fmt: skip
    names[0], names[18], names[19] = "x", "state", "cell"
    fields = {
        "FusedActivationFunction": activation, "CellClip": cell_clip, "ProjClip": projection_clip,
        "TimeMajor": time_major, "AsymmetricQuantizeInputs": asymmetric,
    }  # fmt: skip
    between = [*(f"between{index}" for index in range(4)), "shown"] if integer else []
    op = Op("UNIDIRECTIONAL_SEQUENCE_LSTM", names, ["y"], "UnidirectionalSequenceLSTMOptions", fields, 1, between)
    return Layer(name, tensors, op, _frames(rng, shape, data))


def integer_layers() -> list[Layer]:
    """Return integer layers, whose results are LiteRT's bit for bit."""
    return [
        svdf("svdf"), svdf("svdf rank", rank=2, batch=2), svdf("svdf bare", bias=False, memory=2),
        svdf("svdf without memory", memory=1, rank=3),
        lstm("lstm"), lstm("lstm time major", time_major=True, batch=1), lstm("lstm coupled", couples_input=True),
        lstm("lstm peephole", peephole=True), lstm("lstm both", peephole=True, couples_input=True, batch=1),
        lstm("lstm projection", units=4), lstm("lstm without bias", units=9, projection_bias=False, batch=1),
        lstm("lstm projected peephole", units=4, peephole=True), lstm("lstm zero points", units=4, zeros=(7, 100)),
        lstm("lstm zero point", zeros=(6, -3)), lstm("lstm clips", units=4, cell_clip=0.5, projection_clip=0.3),
        lstm("lstm units", exponent=-9, cells=17), lstm("lstm fine cell", exponent=-15, steps=1),
        lstm("lstm norm", norm=True, peephole=True, units=4), lstm("lstm long norm", norm=True, cells=33),
        lstm("lstm coupled norm", norm=True, couples_input=True, cells=16),
    ]  # fmt: skip


def micro_layers() -> list[Layer]:
    """Return integer layers that only TFLite Micro supports, or that it computes differently from LiteRT."""
    layers = [
        lstm(f"{kind} {number}", kind, **options)
        for kind in ("int8", "int16")
        for number, options in enumerate(_micro_options())
    ]
    layers.append(lstm("int8 zero", zeros=(6, -3)))
    return [
        *(replace(layer, op=replace(layer.op, intermediates=[])) for layer in layers),  # not in TFLite Micro
        svdf("svdf of bytes", state="int8"), svdf("svdf of bytes rank", state="int8", rank=2, memory=2, zero=3),
    ]  # fmt: skip


def _micro_options() -> list[dict[str, Any]]:
    return [
        {}, {"time_major": True, "cells": 17}, {"batch": 1, "exponent": -9, "steps": 5}, {"exponent": -15, "steps": 1},
        {"cell_clip": 0.5, "size": 30, "cells": 3}, {"exponent": -13, "cells": 8},
    ]  # fmt: skip


def float_layers() -> list[Layer]:
    """Return float layers, and float layers with int8 weights."""
    return [
        *(svdf(f"svdf {kind}", kind) for kind in ("float", "hybrid")),
        svdf("svdf asymmetric", "hybrid", asymmetric=True, rank=2, batch=2, activation=0),
        svdf("svdf float rank", "float", rank=3, batch=2, bias=False, memory=9),
        *(
            lstm(f"lstm {kind} {number}", kind, **options)
            for kind in ("float", "hybrid")
            for number, options in enumerate(_float_options())
        ),
    ]


def other_float_layers() -> list[Layer]:
    """Return float layers that are partly expanded into elementary operators, and float layers of other operators."""
    return [
        *(
            lstm(f"lstm {kind} {number}", kind, **options)
            for kind in ("float", "hybrid")
            for number, options in enumerate(_written_out())
        ),
        *(
            make(f"{make.__name__} {kind} {number}", kind, **options)
            for kind in ("float", "hybrid")
            for make, forms in ((rnn, _rnn_options()), (bidirectional, _directions()))
            for number, options in enumerate(forms)
        ),
        *(single(f"single {kind} {full}", kind, full=full) for kind, full in _SINGLE),
    ]


_SINGLE = (("float", True), ("hybrid", True), ("float", False))


def _written_out() -> list[dict[str, Any]]:
    return [
        {"units": 4, "projection_clip": 0.2}, {"norm": True, "couples_input": True}, {"activation": 3, "steps": 2},
        {"units": 5, "norm": True, "peephole": True, "asymmetric": True, "projection_bias": False, "steps": 2},
    ]  # fmt: skip


def _float_options() -> list[dict[str, Any]]:
    return [
        {}, {"couples_input": True, "asymmetric": True}, {"peephole": True, "couples_input": True, "batch": 1},
        {"peephole": True, "time_major": True, "cells": 17}, {"cell_clip": 0.2, "activation": RELU, "steps": 1},
    ]  # fmt: skip


def _rnn_options() -> list[dict[str, Any]]:
    return [{"asymmetric": True}, {"time_major": True, "activation": 3, "steps": 2}, {"is_cell": True}]


def _directions() -> list[dict[str, Any]]:
    # LiteRT's results differ between equivalent forms for an LSTM that merges batches and for a time-major hybrid RNN
    return [
        {"is_lstm": True, "time_major": True}, {"is_lstm": True, "merges": False, "auxiliary": "crossed"},
        {"is_lstm": True, "time_major": True, "auxiliary": "stacked", "asymmetric": True},
        {}, {"merges": False, "auxiliary": "crossed", "asymmetric": True}, {"auxiliary": "stacked"},
    ]  # fmt: skip


class _Inputs:
    """Collector of an operator's float input tensors, with weights of its kind."""

    def __init__(self, seed: int, kind: str) -> None:
        self.rng, self.kind = np.random.default_rng(seed), kind
        self.tensors: list[T] = []

    def weights(self, *shape: int) -> str:
        """Add weights and return their name."""
        name, scale = f"weights{len(self.tensors)}", None
        value: Array = self.rng.standard_normal(shape).astype(np.float32) * np.float32(0.4)
        if self.kind == "hybrid":
            value, scale = self.rng.integers(-127, 128, shape), 0.006 + 0.0001 * len(self.tensors)
        self.tensors.append(T(name, shape, "float32" if scale is None else "int8", value, scale))
        return name

    def bias(self, count: int) -> str:
        """Add a bias and return its name."""
        name = f"bias{len(self.tensors)}"
        self.tensors.append(T(name, (count,), "float32", self.rng.standard_normal(count)))
        return name

    def state(self, *shape: int) -> str:
        """Add a variable and return its name."""
        name = f"state{len(self.tensors)}"
        self.tensors.append(T(name, shape, "float32", is_variable=True))
        return name


def rnn(
    name: str, kind: str, *, steps: int = 3, batch: int = 2, size: int = 5, units: int = 6, time_major: bool = False,
    asymmetric: bool = False, activation: int = TANH, is_cell: bool = False,
) -> Layer:  # fmt: skip
    """Return a plain recurrent layer, or with `is_cell` one step of it."""
    given = _Inputs(len(name) + steps, kind)
    shape = (batch, size) if is_cell else (steps, batch, size) if time_major else (batch, steps, size)
    inputs = [
        "x",
        given.weights(units, size),
        given.weights(units, units),
        given.bias(units),
        given.state(batch, units),
    ]
    tensors = [T("x", shape), *given.tensors, T("y", (*shape[:-1], units))]
    fields = {"FusedActivationFunction": activation, "AsymmetricQuantizeInputs": asymmetric}
    if is_cell:
        op = Op("RNN", inputs, ["y"], "RNNOptions", fields, 1)
    else:
        op = Op("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, ["y"], "SequenceRNNOptions", {**fields, "TimeMajor": time_major})
    return Layer(name, tensors, op, _frames(given.rng, shape, "float32"))


def bidirectional(
    name: str, kind: str, *, is_lstm: bool = False, time_major: bool = False, merges: bool = True,
    asymmetric: bool = False, auxiliary: str = "",
) -> Layer:  # fmt: skip
    """Return a bidirectional layer; an auxiliary input has weights ("crossed") or has none ("stacked")."""
    given = _Inputs(len(name), kind)
    steps, batch, size, widths = 3, 2, 5, (6, 6 if is_lstm else 4)
    crossed = auxiliary == "crossed"
    shape = (steps, batch, size) if time_major else (batch, steps, size)
    if is_lstm:
        inputs, states, more = ["x"], [], [""] * 8
        for direction, units in enumerate(widths):
            inputs += [given.weights(units, size) for _ in range(4)] + [given.weights(units, units) for _ in range(4)]
            inputs += [""] * 3 + [given.bias(units) for _ in range(4)] + [""] * 2
            states += [given.state(batch, units) for _ in range(2)]
            if crossed:
                more[4 * direction : 4 * direction + 4] = [given.weights(units, size) for _ in range(4)]
        inputs += [*states, "x" if auxiliary else "", *more]
    else:
        inputs = ["x"]
        for units in widths:
            inputs += [given.weights(units, size), given.weights(units, units), given.bias(units)]
            inputs.append(given.state(batch, units))
        inputs += ["x" if auxiliary else "", *(given.weights(units, size) if crossed else "" for units in widths)]
    outputs = [T("y", (*shape[:2], sum(widths)))]
    if not merges:
        outputs = [T(title, (*shape[:2], units)) for title, units in zip(("y", "z"), widths, strict=True)]
    title = "LSTM" if is_lstm else "RNN"
    fields = {"FusedActivationFunction": TANH, "TimeMajor": time_major, "MergeOutputs": merges,
              "AsymmetricQuantizeInputs": asymmetric}  # fmt: skip
    op = Op(f"BIDIRECTIONAL_SEQUENCE_{title}", inputs, [tensor.name for tensor in outputs],
            f"BidirectionalSequence{title}Options", fields)  # fmt: skip
    return Layer(name, [T("x", shape), *given.tensors, *outputs], op, _frames(given.rng, shape, "float32"))


def single(name: str, kind: str, *, full: bool = True, batch: int = 2, size: int = 5, units: int = 6) -> Layer:
    """Return one step of an LSTM, by the full kernel or by the basic one."""
    if full:
        layer = lstm(name, kind, steps=1, batch=batch, size=size, cells=units, time_major=True, units=4)
        flat = {"x": (batch, size), "y": (batch, 4)}
        tensors = [replace(item, shape=flat.get(item.name, item.shape)) for item in layer.tensors]
        fields = {"FusedActivationFunction": TANH, "ProjClip": 0.9}
        op = replace(layer.op, code="LSTM", options="LSTMOptions", fields=fields)
        return replace(layer, tensors=tensors, op=op, frames=[frame[0] for frame in layer.frames])
    given = _Inputs(len(name), kind)
    hidden, weights, bias = given.state(batch, units), given.weights(4 * units, size + units), given.bias(4 * units)
    inputs = ["x", hidden, weights, bias, given.state(batch, units)]
    widths = {"y": units, "new": units, "joined": size + units, "sums": 4 * units}
    tensors = [T("x", (batch, size)), *given.tensors, *(T(title, (batch, width)) for title, width in widths.items())]
    op = Op("LSTM", inputs, [*widths], "LSTMOptions", {"FusedActivationFunction": TANH, "KernelType": 1})
    return Layer(name, tensors, op, _frames(given.rng, (batch, size), "float32"))
