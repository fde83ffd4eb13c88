"""Weights that ONNX Runtime multiplies exactly.

On x86 processors without VNNI its products of uint8 data and int8 weights saturate sums of two at 16 bits, unless its
optimizer makes the weights uint8. The reference runs without the optimizer, so they are made uint8 here: the weight and
its zero point are both larger by 128, and the definition of the operators gives the same result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

# the places of a weight and of its zero point among the inputs
_PLACES = {"QLinearConv": (3, 5), "QLinearMatMul": (3, 5), "ConvInteger": (1, 3), "MatMulInteger": (1, 3)}
_CHUNK = 1 << 24


def multiplies_integers(path: Path) -> bool:
    """Tell whether a file may have an operator whose weights are to be made uint8: it has the name of one."""
    names = [name.encode() for name in _PLACES]
    longest = max(map(len, names))
    tail = b""
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            if any(name in tail + data for name in names):
                return True
            tail = data[-longest:]
    return False


def widen_weights(model: Any) -> None:
    """Make int8 weights of integer products uint8, in place."""
    from onnx import numpy_helper

    known = {tensor.name: tensor for tensor in model.graph.initializer}

    def shifted(name: str, source: Any) -> str:
        title = f"{name} as uint8"
        if title not in known:
            tensor = numpy_helper.from_array((source.astype(np.int16) + 128).astype(np.uint8), title)
            known[title] = tensor
            model.graph.initializer.append(tensor)
        return title

    for node in model.graph.node:
        if node.op_type not in _PLACES or node.domain not in ("", "ai.onnx"):
            continue
        weight, zero = _PLACES[node.op_type]
        zero_name = node.input[zero] if len(node.input) > zero else ""
        if node.input[weight] not in known or (zero_name and zero_name not in known):
            continue
        values = numpy_helper.to_array(known[node.input[weight]])
        if values.dtype != np.int8:
            continue
        point = numpy_helper.to_array(known[zero_name]) if zero_name else np.zeros((), np.int8)
        node.input.extend([""] * (zero + 1 - len(node.input)))
        node.input[zero] = shifted(zero_name or "zero", point)
        node.input[weight] = shifted(node.input[weight], values)
