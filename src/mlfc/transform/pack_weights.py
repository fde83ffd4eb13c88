"""Keep the quantized weights of float layers packed: kernels dequantize them in the inner loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlfc.ops.weight_only import STORED
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule
from mlfc.relay.op import forms
from mlfc.support import dtypes
from mlfc.transform.matching import Array, apply_rules, dtype_of, match_call, shape_of, transpose_axes, value_of

_PACKED = forms("packed_of")
_LEAST_BLOCK = 8  # fewest weights per scale: scales of smaller blocks take as much memory as the weights


@dataclass(frozen=True)
class PackWeights:
    """Turn dense layers, convolutions and row lookups on dequantized constants into weight-only operators.

    A weight is stored in 2, 4 or 8 bits instead of 32. Kernels compute with the dequantized values. Weights whose
    packing would save less than `least_saving` bytes, scales that are not finite, and blocks that are not along the
    reduction axis are left to `FoldConstant`.
    """

    least_saving: int = 1024

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with weight-only operators."""
        convolutions = dict.fromkeys(_PACKED, self._convolution)
        return apply_rules(module, {**convolutions, "nn.dense": self._dense, "take": self._take})

    def _dense(self, call: Call) -> Expr | None:
        found = self._packable(call, 1)
        if found is None or not found.in_rows():
            return None
        args = [call.args[0], *found.constants()]
        return ir.call(
            "qnn.weight_only_dense", args, units=call.attrs["units"], block_size=found.block_along(1), span=call.span
        )

    def _take(self, call: Call) -> Expr | None:
        found = self._packable(call, 0)
        by_row = call.attrs["axis"] == 0 and call.attrs["mode"] != "wrap" and not call.attrs["batch_dims"]
        if found is None or not by_row or not found.in_rows():
            return None
        codes, scale, zero_point = found.constants()
        args = [codes, call.args[1], scale, zero_point]
        return ir.call("qnn.weight_only_take", args, block_size=found.block_along(1), span=call.span)

    def _convolution(self, call: Call) -> Expr | None:
        found = self._packable(call, 1)
        layout = call.attrs["kernel_layout"]
        if found is None:
            return None
        # each filter reads one channel, or the layout allows it: a depthwise convolution
        is_thin = found.codes.data.shape[layout.index("I")] == 1 or layout.endswith("OI")
        if call.attrs["groups"] != 1 and is_thin:
            return None
        axis = layout.index("O")
        extents = [max(pair) for pair in zip(found.scale.shape, found.zero.shape, strict=True)]
        if any(extent != 1 for other, extent in enumerate(extents) if other != axis):
            return None
        codes, scale, zero_point = found.constants()
        pair = [Constant(part.data.reshape(-1), part.name, part.span) for part in (scale, zero_point)]
        return ir.call(
            _PACKED[ir.op_name(call) or ""],
            [call.args[0], codes, *pair],
            {**call.attrs, "out_dtype": None},
            span=call.span,
        )

    def _packable(self, call: Call, index: int) -> _Dequantized | None:
        """Return the weights of a float layer if they are dequantized constants and packing saves enough bytes."""
        found = _dequantized(call.args[index]) if dtype_of(call) == "float32" else None
        if found is None or found.saving() < self.least_saving:
            return None
        finite = np.all(np.isfinite(found.scale)) and np.all(np.isfinite(found.zero.astype(np.float32)))
        return found if finite else None


@dataclass(frozen=True, eq=False)
class _Dequantized:
    """Dequantized constants. Along at most one axis, each scale applies to a block of `block` codes."""

    codes: Constant
    scale: Array
    zero: Array
    scale_name: str | None
    axis: int = 0
    block: int = 0

    def turned(self, axes: Sequence[int]) -> _Dequantized:
        """Return the constants with their axes in another order."""
        codes = Constant(self.codes.data.transpose(axes), self.codes.name, self.codes.span)
        scale, zero = self.scale.transpose(axes), self.zero.transpose(axes)
        return replace(self, codes=codes, scale=scale, zero=zero, axis=list(axes).index(self.axis))

    def with_units(self, shape: Sequence[int]) -> _Dequantized | None:
        """Return the constants reshaped to `shape`; None unless the shapes differ only in axes of size 1."""
        before = self.codes.data.shape
        kept = [axis for axis, extent in enumerate(before) if extent != 1]
        places = [axis for axis, extent in enumerate(shape) if extent != 1]
        if [before[axis] for axis in kept] != [shape[axis] for axis in places]:
            return None
        extents = [[1] * len(shape) for _ in range(2)]
        for part, own in zip((self.scale, self.zero), extents, strict=True):
            for axis, place in zip(kept, places, strict=True):
                own[place] = part.shape[axis]
        codes = Constant(self.codes.data.reshape(shape), self.codes.name, self.codes.span)
        axis = places[kept.index(self.axis)] if self.axis in kept else 0
        scale, zero = self.scale.reshape(extents[0]), self.zero.reshape(extents[1])
        return replace(self, codes=codes, scale=scale, zero=zero, axis=axis)

    def block_along(self, axis: int) -> int:
        """Return the number of codes along `axis` that share a scale; 0 if all do."""
        return self.block if self.axis == axis and max(self.scale.shape[axis], self.zero.shape[axis]) > 1 else 0

    def in_rows(self) -> bool:
        """Return whether each scale and zero point applies to a matrix row or to a block of one."""
        if self.codes.data.ndim != 2:
            return False
        rows, blocks = (max(pair) for pair in zip(self.scale.shape, self.zero.shape, strict=True))
        whole = rows in (1, self.codes.data.shape[0])
        return whole and (blocks == 1 or self.block_along(1) >= _LEAST_BLOCK)

    def saving(self) -> int:
        """Return the number of bytes saved compared with float32 weights."""
        size = self.codes.data.size
        packed = -(-size * dtypes.bits(self.codes.type.dtype) // 8) + self.scale.nbytes
        varies = bool(self.zero.size) and bool(np.any(self.zero != self.zero.flat[0]))
        return 4 * size - packed - (self.zero.size if varies else 0)

    def constants(self) -> tuple[Constant, Constant, Constant]:
        """Return the codes, scales and zero points."""
        return self.codes, Constant(self.scale, self.scale_name), Constant(self.zero)


def _dequantized(expr: Expr) -> _Dequantized | None:
    """Return the constants that an expression dequantizes; None for any other expression."""
    call = match_call(expr, "transpose", "reshape", "qnn.dequantize", "qnn.dequantize_blocks")
    if call is None:
        return None
    rank = len(shape_of(call))
    if match_call(call, "transpose"):
        inner = _dequantized(call.args[0])
        return None if inner is None else inner.turned(transpose_axes(call))
    if match_call(call, "reshape"):
        inner = _dequantized(call.args[0])
        return None if inner is None else inner.with_units(shape_of(call))
    codes, scale, zero_point = call.args[0], value_of(call.args[1]), value_of(call.args[2])
    if not isinstance(codes, Constant) or scale is None or zero_point is None or codes.type.dtype not in STORED:
        return None
    axis = call.attrs["axis"] % rank if rank else 0
    name = call.args[1].name if isinstance(call.args[1], Constant) else None
    block = call.attrs.get("block_size", 0)
    if match_call(call, "qnn.dequantize"):
        shape = [-1 if at == axis else 1 for at in range(rank)]
        parts = [part.reshape(shape if part.size > 1 else [1] * rank) for part in (scale, zero_point)]
        block = 1
    else:
        parts = [part.reshape([1] * rank) if part.ndim == 0 else part for part in (scale, zero_point)]
    return _Dequantized(codes, parts[0].astype(np.float32), parts[1], name, axis, block)
