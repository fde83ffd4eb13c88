"""Small language models: single attention nodes, and a decoder layer with a KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
TOKENS, CAPACITY, HEADS, GROUPS, SIZE = 11, 8, 4, 2, 4
WIDTH = HEADS * SIZE
DECODER_STATES = {"keys": "keys_next", "values": "values_next", "position": "position_next"}


def single_node(
    operator: str,
    inputs: Mapping[str, Array | None],
    outputs: Sequence[str] = ("y",),
    *,
    domain: str = "",
    opset: int = 24,
    constants: Sequence[str] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one node ``n``; None marks an omitted input, and `constants` are its weights."""
    names = [name if value is not None else "" for name, value in inputs.items()]
    node = helper.make_node(operator, names, list(outputs), name="n", domain=domain, **attributes)
    given = {name: value for name, value in inputs.items() if value is not None}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
        if name not in constants
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name]
    weights = [numpy_helper.from_array(given[name], name) for name in constants]
    graph = helper.make_graph([node], "tested", infos, results, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def decoder() -> onnx.ModelProto:
    """Return one decoder layer with a KV cache of `CAPACITY` tokens; it maps a token to the next token's scores."""
    rng = np.random.default_rng(7)
    shapes = {
        "words": (TOKENS, WIDTH), "wq": (WIDTH, WIDTH), "wk": (WIDTH, GROUPS * SIZE), "wv": (WIDTH, GROUPS * SIZE),
        "wo": (WIDTH, TOKENS), "scale": (WIDTH,),
    }  # fmt: skip
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    angles = np.arange(CAPACITY)[:, None] / 10.0 ** np.arange(SIZE // 2)
    weights |= {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    weights |= {"zero": np.array([0]), "one": np.array([1])}
    make = helper.make_node
    nodes = [
        make("Gather", ["words", "token"], ["x"]),
        make("RMSNormalization", ["x", "scale"], ["normal"]),
        *(make("MatMul", ["normal", f"w{part}"], [part]) for part in "qkv"),
        make("Unsqueeze", ["position", "zero"], ["ids"]),
        make("RotaryEmbedding", ["q", "cos", "sin", "ids"], ["q_turned"], num_heads=HEADS),
        make("RotaryEmbedding", ["k", "cos", "sin", "ids"], ["k_turned"], num_heads=GROUPS),
        make("TensorScatter", ["keys", "k_turned", "position"], ["keys_next"]),
        make("TensorScatter", ["values", "v", "position"], ["values_next"]),
        make("Add", ["position", "one"], ["position_next"]),
        make(
            "Attention", ["q_turned", "keys_next", "values_next", "", "", "", "position_next"], ["mixed"],
            is_causal=1, q_num_heads=HEADS, kv_num_heads=GROUPS,
        ),
        make("Add", ["x", "mixed"], ["sum"]),
        make("MatMul", ["sum", "wo"], ["scores"]),
    ]  # fmt: skip
    cache = (1, CAPACITY, GROUPS * SIZE)
    integers, reals = TensorProto.INT64, TensorProto.FLOAT
    info = helper.make_tensor_value_info
    inputs = [info("token", integers, (1, 1)), info("position", integers, (1,))]
    inputs += [info(name, reals, cache) for name in ("keys", "values")]
    outputs = [info("scores", reals, (1, 1, TOKENS)), info("position_next", integers, (1,))]
    outputs += [info(name, reals, cache) for name in ("keys_next", "values_next")]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
