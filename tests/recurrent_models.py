"""ONNX models of one recurrent layer with random weights, and ONNX Runtime's results."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, SIZE, UNITS = 5, 2, 3, 4


@dataclass(frozen=True)
class Layer:
    """A model of one node, and values for its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Array]

    def expected(self) -> list[Array]:
        """Return ONNX Runtime's results."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # with several threads, ONNX Runtime quantizes states per part of the batch
        data = self.model.SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return [np.asarray(value) for value in session.run(None, self.inputs)]


def layer(
    operator: str,
    seed: int = 0,
    *,
    sizes: tuple[int, int, int, int] = (STEPS, BATCH, SIZE, UNITS),
    direction: str = "forward",
    computed: bool = False,
    lengths: list[int] | None = None,
    bare: bool = False,
    outputs: tuple[str, ...] = ("all", "hidden", "cell"),
    prefix: str = "",
    **attrs: Any,
) -> Layer:
    """Return a model of one layer with a bias, initial states and, for an LSTM, peepholes.

    `sizes` are steps, batch, input size and units. `computed` makes the weights inputs of the model. `bare` omits all
    optional inputs. `outputs` are the node's outputs; an empty name omits one.
    """
    rng = np.random.default_rng(seed)
    steps, batch, size, units = sizes
    directions, columns = 1 + (direction == "bidirectional"), GATES[operator] * units
    scale = min(0.5, units**-0.5)
    shapes = {
        "x": (steps, batch, size), "w": (directions, columns, size), "r": (directions, columns, units),
        "b": (directions, 2 * columns), "lengths": (batch,), "h": (directions, batch, units),
        "c": (directions, batch, units), "p": (directions, 3 * units),
    }  # fmt: skip
    values = {name: (rng.standard_normal(shape) * scale).astype(np.float32) for name, shape in shapes.items()}
    values["lengths"] = np.asarray(lengths if lengths is not None else [steps] * batch, np.int32)
    names = list(shapes)[: 8 if operator == "LSTM" else 6]
    left_out = {"b", "h", "c", "p"} if bare else set()
    left_out |= {"lengths"} if lengths is None else set()
    names = [name for name in names if name not in left_out or any(other not in left_out for other in names)]
    given = [prefix + name if name not in left_out else "" for name in names]
    fixed = set() if computed else {"w", "r", "b", "p"}
    made = [name and prefix + name for name in outputs[: 3 if operator == "LSTM" else 2]]
    node = helper.make_node(
        operator, given, made, name=f"{prefix}layer", hidden_size=units, direction=direction, **attrs
    )
    used = {name: values[name] for name in names if name not in left_out}
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(prefix + name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
         for name, value in used.items() if name not in fixed],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in made if name],
        [numpy_helper.from_array(value, prefix + name) for name, value in used.items() if name in fixed],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=9)
    return Layer(prefix or operator, model, {prefix + name: used[name] for name in used if name not in fixed})


def random_layers() -> list[Layer]:
    """Return layers of every kind, with every option in some of them."""
    options: list[dict[str, Any]] = [
        {}, {"computed": True}, {"lengths": [3, 5]}, {"lengths": [0, 2], "computed": True}, {"clip": 0.2},
        {"bare": True}, {"sizes": (4, 1, 3, 17)}, {"sizes": (3, 3, 2, 1)}, {"sizes": (1, 1, 2, 5)},
    ]  # fmt: skip
    own: dict[str, list[dict[str, Any]]] = {
        "LSTM": [
            {"lengths": [1, 4]}, {"input_forget": 1}, {"outputs": ("", "hidden")}, {"outputs": ("", "", "cell")},
            {"outputs": ("all",)},
        ],
        "GRU": [
            {"linear_before_reset": 1}, {"linear_before_reset": 1, "bare": True},
            {"linear_before_reset": 1, "computed": True, "lengths": [5, 4]},
        ],
        "RNN": [{"outputs": ("", "hidden")}],
    }  # fmt: skip
    found = []
    directions = cycle(("bidirectional", "reverse", "forward", "bidirectional"))
    for operator, more in own.items():
        for option in [*options, *more]:
            count = len(found)
            found.append(layer(operator, count, direction=next(directions), prefix=f"m{count}_", **option))
    return [*found, *_activations(len(found))]


def _activations(first: int) -> list[Layer]:
    """Return layers of one step with each activation; some of ONNX Runtime's defaults differ from ONNX's."""
    parameters = {
        "Affine": 2, "Elu": 1, "HardSigmoid": 2, "LeakyRelu": 1, "Relu": 0, "ScaledTanh": 2, "Softplus": 0,
        "Softsign": 0, "ThresholdedRelu": 1,
    }  # fmt: skip
    found = []
    for name, count in parameters.items():
        given = {"activation_alpha": [0.3]} if count else {}
        if count == 2:
            given["activation_beta"] = [0.2]
        number = first + len(found)
        found.append(layer("RNN", number, prefix=f"m{number}_", activations=[name], **given))
    mixed = ["HardSigmoid", "Relu", "Tanh", "Sigmoid", "Softsign", "ScaledTanh"]
    number = first + len(found)
    found.append(
        layer("LSTM", number, prefix=f"m{number}_", direction="bidirectional", activations=mixed,
              activation_alpha=[0.3, 1.5], activation_beta=[0.4, 0.5])
    )  # fmt: skip
    number += 1
    found.append(layer("GRU", number, prefix=f"m{number}_", activations=["LeakyRelu", "Elu"]))
    return found


def dynamic_layer(
    seed: int, *, dtype: str = "int8", direction: str = "forward", per_column: bool = False, bare: bool = False,
    batch: int = 2, units: int = 7, prefix: str = "", **attrs: Any,
) -> Layer:  # fmt: skip
    """Return a model of a DynamicQuantizeLSTM.

    Its weights have 7 bits, because ONNX Runtime saturates sums of 8-bit products on processors without VNNI.
    """
    rng = np.random.default_rng(seed)
    steps, size, directions = 5, 6, 1 + (direction == "bidirectional")
    middle = 128 if dtype == "uint8" else 0
    point = middle + 5 if dtype == "uint8" else 0
    shape = (directions, 4 * units) if per_column else (directions,)

    def floats(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.4).astype(np.float32)

    def scales() -> Array:
        return (rng.random(shape) * 0.01 + 0.005).astype(np.float32)

    def integers(rows: int) -> Array:
        return (middle + rng.integers(-63, 64, (directions, rows, 4 * units))).astype(dtype)

    constants = {
        "w": integers(size), "r": integers(units), "b": floats(directions, 8 * units),
        "p": floats(directions, 3 * units), "ws": scales(), "wz": np.full(shape, point, dtype), "rs": scales(),
        "rz": np.full(shape, point, dtype),
    }  # fmt: skip
    inputs = {
        "x": floats(steps, batch, size), "h": floats(directions, batch, units), "c": floats(directions, batch, units)
    }  # fmt: skip
    names = ["x", "w", "r", "b", "", "h", "c", "p", "ws", "wz", "rs", "rz"]
    names = ["" if bare and name in "bhcp" else name and prefix + name for name in names]
    made = [prefix + name for name in ("all", "hidden", "cell")]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, made, name=f"{prefix}layer", domain="com.microsoft", hidden_size=units,
        direction=direction, **attrs,
    )  # fmt: skip
    fed = {prefix + name: value for name, value in inputs.items() if prefix + name in names}
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(name, 1, value.shape) for name, value in fed.items()],
        [helper.make_tensor_value_info(name, 1, None) for name in made],
        [numpy_helper.from_array(value, prefix + name) for name, value in constants.items() if prefix + name in names],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return Layer(prefix or "dynamic", helper.make_model(graph, opset_imports=opsets, ir_version=8), fed)


def dynamic_layers() -> list[Layer]:
    """Return layers with each form of their weights."""
    options: list[dict[str, Any]] = [
        {}, {"dtype": "uint8"}, {"per_column": True}, {"dtype": "uint8", "per_column": True, "bare": True},
        {"direction": "bidirectional", "batch": 1}, {"direction": "reverse", "units": 33}, {"clip": 0.5},
    ]  # fmt: skip
    return [dynamic_layer(number, prefix=f"d{number}_", **option) for number, option in enumerate(options)]
