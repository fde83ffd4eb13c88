"""Residual networks with random weights, as in ``tvm.relay.testing.resnet``: pre-activation, for images."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from mlfc.errors import OptionError
from mlfc.relay.ir import Function, IRModule, TensorType, TupleGetItem, Var, call
from mlfc.runtime.tensor.ndarray import NDArray, array

_UNITS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_FILTERS = (64, 128, 256, 512)
_FIRST_BOTTLENECK, _EXPANSION, _LEAST = 50, 4, 33


class _Network:
    """A graph under construction, and its parameters; expressions are tensors with channels second."""

    def __init__(self, data: Var) -> None:
        self.params = [data]

    def param(self, name: str, *shape: int) -> Var:
        self.params.append(Var(name, TensorType(shape, "float32")))
        return self.params[-1]

    def conv(self, x: Any, name: str, filters: int, kernel: int, stride: int) -> Any:
        weight = self.param(f"{name}_weight", filters, x.type.shape[1], kernel, kernel)
        return call("nn.conv2d", [x, weight], strides=(stride, stride), padding=(kernel // 2,) * 2)

    def norm(self, x: Any, name: str) -> Any:
        parts = ("gamma", "beta", "moving_mean", "moving_var")
        values = [self.param(f"{name}_{part}", x.type.shape[1]) for part in parts]
        return TupleGetItem(call("nn.batch_norm", [x, *values], epsilon=2e-5), 0)

    def unit(self, x: Any, name: str, filters: int, stride: int, is_deep: bool) -> Any:
        """Add convolutions, each after a normalization and a ReLU, and their shortcut."""
        last = filters * _EXPANSION if is_deep else filters
        deep, plain = ((filters, 1, 1), (filters, 3, stride), (last, 1, 1)), ((filters, 3, stride), (last, 3, 1))
        y, shortcut = x, x
        for number, (channels, kernel, step) in enumerate(deep if is_deep else plain, 1):
            y = call("nn.relu", [self.norm(y, f"{name}_bn{number}")])
            if number == 1 and (stride != 1 or x.type.shape[1] != last):
                shortcut = self.conv(y, f"{name}_sc", last, 1, stride)
            y = self.conv(y, f"{name}_conv{number}", channels, kernel, step)
        return call("add", [y, shortcut])


def get_workload(
    batch_size: int = 1,
    num_classes: int = 1000,
    num_layers: int = 18,
    image_shape: tuple[int, int, int] = (3, 224, 224),
    layout: str = "NCHW",
    dtype: str = "float32",
) -> tuple[IRModule, dict[str, NDArray]]:
    """Return a residual network of 18 to 152 layers and its random weights, which are the same in every call."""
    if num_layers not in _UNITS or (layout, dtype) != ("NCHW", "float32") or image_shape[1] < _LEAST:
        raise OptionError(
            f"expected layers {', '.join(map(str, _UNITS))}, NCHW, float32 and at least {_LEAST} rows, "
            f"got {num_layers}, {layout}, {dtype} and {image_shape[1]}"
        )
    network = _Network(Var("data", TensorType((batch_size, *image_shape), dtype)))
    x: Any = network.conv(network.norm(network.params[0], "bn_data"), "conv0", _FILTERS[0], 7, 2)
    x = call("nn.relu", [network.norm(x, "bn0")])
    x = call("nn.max_pool2d", [x], pool_size=(3, 3), strides=(2, 2), padding=(1, 1))
    for stage, (count, filters) in enumerate(zip(_UNITS[num_layers], _FILTERS, strict=True), 1):
        for number in range(1, count + 1):
            stride = 2 if number == 1 and stage > 1 else 1
            x = network.unit(x, f"stage{stage}_unit{number}", filters, stride, num_layers >= _FIRST_BOTTLENECK)
    x = call("nn.global_avg_pool2d", [call("nn.relu", [network.norm(x, "bn1")])])
    x = call("nn.batch_flatten", [x])
    weight = network.param("fc1_weight", num_classes, x.type.shape[1])
    x = call("nn.bias_add", [call("nn.dense", [x, weight], units=num_classes), network.param("fc1_bias", num_classes)])
    module = IRModule({"main": Function(tuple(network.params), call("nn.softmax", [x]))}, ("softmax",))
    return module, _weights(network.params[1:])


def _weights(params: list[Any]) -> dict[str, NDArray]:
    random, found = np.random.default_rng(0), {}
    for param in params:
        shape = param.type.shape
        values = np.full(shape, 1.0 if param.name.endswith(("gamma", "var")) else 0.0)
        if len(shape) > 1:
            values = random.normal(0, np.sqrt(2 / prod(shape[1:])), shape)
        found[param.name] = array(values.astype(np.float32))
    return found
