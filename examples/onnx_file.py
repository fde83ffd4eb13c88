"""Writer of the gallery's models: few nodes, float32, and no information about the machine that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, np.ndarray],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    *,
    integers: Sequence[str] = (),
) -> None:
    """Write a model; the inputs and outputs in `integers` are int64."""

    def described(tensors: Mapping[str, Sequence[int]]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, onnx.TensorProto.INT64 if name in integers else 1, list(shape))
            for name, shape in tensors.items()
        ]

    held = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), path.parent.name, described(inputs), described(outputs), held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def weights_of(module: object, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the parameters of a PyTorch module under other names."""
    state = module.state_dict()  # type: ignore[attr-defined]
    return {new: state[old].numpy() for old, new in names.items()}
