"""Quantized convolutions, dense layers and matrix products: exact int32 sums of zero-centred products.

The scales among the arguments say what the integers mean; the sums do not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.ops.conv import Zeros, declare_conv
from mlfc.ops.dense import BATCH_ATTRS, declare_product
from mlfc.ops.rules import optional_dtype
from mlfc.relay.ir import Attrs, TensorType
from mlfc.tir.context import Tensor

# of the arguments after data and weights: what it is, its dtype, whether each output channel may have its own
_NUMBERS = (
    ("zero point", "int32", False), ("zero point", "int32", True),
    ("scale", "float32", False), ("scale", "float32", True),
)  # fmt: skip


def _int32_sum(name: str, attrs: Attrs, types: Sequence[TensorType], channels: int) -> str:
    """Check operands, zero points and scales; return the dtype of the sums."""
    for operand in types[:2]:
        if operand.dtype not in ("int8", "uint8", "int16"):
            raise TypeCheckError(f"{name}: expected operands of int8, uint8 or int16, got {operand.dtype}")
    for index, (kind, (what, dtype, per_channel)) in enumerate(zip(types[2:], _NUMBERS, strict=True), 2):
        allowed: tuple[tuple[int, ...], ...] = ((), (1,), (channels,)) if per_channel else ((), (1,))
        if kind.dtype != dtype or kind.shape not in allowed:
            raise TypeCheckError(f"{name}: argument {index}, a {what}, must be {dtype} of 1 element"
                                 f"{f' or {channels}' * per_channel}, not {kind}")  # fmt: skip
    dtype = optional_dtype(attrs["out_dtype"], "int32")
    if dtype != "int32":
        raise TypeCheckError(f"{name}: expected out_dtype int32, got {dtype}")
    return dtype


def _zero_points(name: str, inputs: Sequence[Tensor]) -> Zeros:
    data, weight = inputs[2].value, inputs[3].value
    if data is None or weight is None:
        raise UnsupportedError(f"{name} needs zero points that are known at compile time")
    return int(data.reshape(())), int(weight.reshape(())) if weight.size == 1 else np.asarray(weight, np.int32)


for _name, _transposed, _doc in (
    ("qnn.conv2d", False, "Convolution of quantized data with quantized weights; int32 sums."),
    ("qnn.conv2d_transpose", True, "Transposed convolution of quantized data; int32 sums."),
):
    declare_conv(_name, 2, _doc, transposed=_transposed, num_inputs=6, check=_int32_sum, zeros=_zero_points,
                 contract="exact")  # fmt: skip
declare_product("qnn.dense", "Dense layer of quantized data; int32 sums.", num_inputs=6, check=_int32_sum,
                zeros=_zero_points, contract="exact")  # fmt: skip
declare_product("qnn.batch_matmul", "Matrix product of each pair of a batch of quantized matrices; int32 sums.",
                batched=True, num_inputs=6, attrs=BATCH_ATTRS, check=_int32_sum, zeros=_zero_points,
                contract="exact")  # fmt: skip
