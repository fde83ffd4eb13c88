"""Calls of operators that the tables of cases leave out: convolutions, matrix products, pools, quantized operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Given:
    """A variable."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, eq=False)
class Spec:
    """An operator and its arguments: variables, constant arrays, and tuples of them."""

    operator: str
    args: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    label: str = ""


def _scale(value: float) -> Any:
    return np.asarray(value, np.float32)


def _zero(value: int) -> Any:
    return np.asarray(value, np.int32)


def _weights(*shape: int) -> Any:
    return np.resize(np.asarray([-128, 127, 0, 1, 126, -127, -1], np.int8), shape)


def _real_weights(*shape: int) -> Any:
    return np.resize(np.asarray([0.0, -1.5, np.inf, 3e38, 2.5, -np.inf, 1e-45, np.nan, -0.0], np.float32), shape)


def specs() -> Iterator[Spec]:
    """Yield calls of each operator, with each attribute that selects different code."""
    yield from _shapes()
    yield from _pools()
    yield from _products()
    yield from _attention()
    yield from _recurrent()
    yield from _recurrent_codes()
    yield from _recurrent_ranges()
    yield from _quantized()
    yield from _quantized_products()
    yield from _packed_weights()
    yield from _signals()


def _shapes() -> Iterator[Spec]:
    yield Spec("broadcast_to_like", (Given((1, 5)), Given((3, 5))))
    for dtype in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"):
        for mode in ("up", "down", "nearest") if dtype == "float8_e8m0fnu" else ("up",):
            attrs = {"dtype": dtype, "saturate": False, "round_mode": mode}
            yield Spec("cast_narrow", (Given((100,)),), attrs, f"{dtype}-{mode}")
    yield Spec("slice_like", (Given((4, 5)), Given((2, 3))), {"axes": ()})
    yield Spec("reshape_like", (Given((4, 5)), Given((2, 10))))
    yield Spec("nn.layer_norm", (Given((3, 37)), Given((37,)), Given((37,))))
    yield Spec("nn.fast_softmax", (Given((3, 37)),), {"axis": -1})
    for operator in ("nn.softmax", "nn.log_softmax"):
        yield Spec(operator, (Given((36, 3)),), {"axis": 0}, "columns")
        yield Spec(operator, (Given((3, 37)),), {"axis": 1}, "rows")
        yield Spec(operator, (Given((36, 5)),), {"axis": 1}, "short-rows")


def _pools() -> Iterator[Spec]:
    for rank, letters in ((1, "W"), (2, "HW"), (3, "DHW")):
        shape = (1, 2, *(4, 3, 3)[:rank])
        for kind in ("avg", "max"):
            yield Spec(f"nn.adaptive_{kind}_pool{rank}d", (Given(shape),), {"output_size": (2,) * rank})
            attrs = {"pool_size": (3,) * rank, "strides": (2,) * rank, "padding": (1,) * (2 * rank)}
            yield Spec(f"nn.{kind}_pool{rank}d", (Given(shape),), {**attrs, "layout": f"NC{letters}"}, "padded")
    yield from _samples()
    yield from _selections()


def _selections() -> Iterator[Spec]:
    number, limit = np.asarray(2, np.int64), np.asarray(0.5, np.float32)
    for centred in (False, True):
        yield Spec("vision.select_boxes",
                   (Given((2, 5, 4)), Given((2, 2, 5)), number, limit, np.asarray(-np.inf, np.float32)),
                   {"rows": 7, "center_point_box": centred}, "edges" if not centred else "middles")  # fmt: skip
    yield Spec("vision.select_boxes",
               (Given((1, 6, 4)), Given((1, 1, 6)), Given((1,), "int64"), Given((1,)), Given((1,))),
               {"rows": 2}, "late")  # fmt: skip
    yield Spec("linalg.det", (Given((3, 3, 3)),))
    yield Spec("linalg.det", (Given((1, 1)),), label="one")


def _samples() -> Iterator[Spec]:
    for dtype in ("float32", "float64"):
        for kind in ("uniform", "normal"):
            attrs = {"shape": (5, 3), "dtype": dtype, "key": (7, 1 << 31)}
            yield Spec(f"random.philox_{kind}", (Given((1,), "int64"),), attrs, dtype)
    for mode in ("avg", "max"):
        for layout, data in (("NCHW", (2, 3, 4, 5)), ("NHWC", (2, 4, 5, 3))):
            attrs = {"pooled_size": (2, 3), "spatial_scale": 0.5, "sample_ratio": -1 if mode == "avg" else 2,
                     "layout": layout, "mode": mode, "aligned": layout == "NCHW"}  # fmt: skip
            yield Spec("vision.roi_align", (Given(data), Given((9, 5))), attrs, f"{mode}-{layout}")
    for rank, layout in ((1, "NWC"), (2, "NCHW"), (3, "NCDHW")):
        shape, places = (2, *(4, 3, 5)[:rank]), (6, 2, 3)[:rank]
        data = (1, *shape[1:], 2) if layout == "NWC" else (1, *shape)
        for padding in ("zeros", "border", "reflection"):
            for method in ("nearest", "bilinear", "bicubic")[: 3 if rank < 3 else 2]:
                attrs = {"method": method, "layout": layout, "padding_mode": padding,
                         "align_corners": method != "bilinear"}  # fmt: skip
                yield Spec("image.grid_sample", (Given(data), Given((1, rank, *places))), attrs, f"{method}-{padding}")


def _products() -> Iterator[Spec]:
    for rank, letters in ((1, "W"), (2, "HW"), (3, "DHW")):
        attrs = {"channels": 3, "kernel_size": (2,) * rank, "padding": (1, 0) * rank}
        shape, kernel = (1, *(4, 3, 2)[:rank], 2), (2,) * rank
        layout = {"data_layout": f"N{letters}C"}
        yield Spec(f"nn.conv{rank}d", (Given(shape), _real_weights(*kernel, 2, 3)),
                   {**attrs, **layout, "kernel_layout": f"{letters}IO"})  # fmt: skip
        yield Spec(f"nn.conv{rank}d_transpose", (Given(shape), _real_weights(2, 3, *kernel)),
                   {**attrs, **layout, "kernel_layout": f"IO{letters}", "strides": (2,) * rank})  # fmt: skip
    yield Spec("nn.conv2d", (Given((1, 5, 5, 4)), _real_weights(3, 3, 4, 1)),
               {"channels": 4, "groups": 4, "kernel_size": (3, 3), "padding": (1, 1, 1, 1), "data_layout": "NHWC",
                "kernel_layout": "HWOI"}, "depthwise")  # fmt: skip
    yield Spec("nn.dense", (Given((3, 37)), Given((5, 37))), {"units": 5})
    yield Spec("nn.matmul", (Given((3, 37)), Given((37, 5))), {"units": 5})
    yield Spec("nn.batch_matmul", (Given((2, 3, 37)), Given((2, 5, 37))), {"transpose_b": True})


def _attention() -> Iterator[Spec]:
    """Yield attentions with many and with few queries, with all optional arguments and with none."""
    for queries, keys, size in ((9, 21, 3), (2, 21, 17)):
        shared, scores = (2, 2, keys, size), (1, 4, queries, keys)
        parts = (Given((2, 4, queries, size)), Given(shared), Given(shared))
        yield Spec("nn.attention", parts, {"scale": 0.25, "zero_rows": False}, f"{queries} queries")
        extras = (
            Given(scores, "bool"),
            Given((2, 1, 1, keys)),
            Given((2,), "int32"),
            Given((2,), "int32"),
            Given((4,)),
        )
        attrs = {"scale": 0.25, "softcap": 3.0, "left": 9, "right": 1, "offset": 5,
                 "extras": ("mask", "bias", "offset", "lengths", "sink")}  # fmt: skip
        yield Spec("nn.attention", (*parts, *extras), attrs, f"{queries} queries, all that is optional")


def _recurrent() -> Iterator[Spec]:
    """Yield bidirectional cells whose sequences end early, late, and not at all."""
    directions, batch, units = 2, 3, 2
    state, lengths = Given((directions, batch, units)), Given((batch,), "int32")
    for name, gates, functions, more in (
        ("lstm", 4, ("sigmoid", "tanh", "tanh"), (state, Given((directions, 3 * units)))),
        ("gru", 3, ("sigmoid", "tanh"), (Given((directions, units)),)),
        ("rnn", 1, ("tanh",), ()),
    ):
        data = Given((3, batch, directions * gates * units))
        numbers = (0.0,) * (directions * len(functions))
        attrs = {"activations": functions * directions, "alphas": numbers, "betas": numbers,
                 "direction": "bidirectional", "returns": ("all", "hidden")}  # fmt: skip
        weights = _real_weights(directions, gates * units, units)
        yield Spec(f"nn.{name}_steps", (data, weights, state, lengths, *more), attrs)


def _recurrent_ranges() -> Iterator[Spec]:
    """Yield cells that quantize states of any range."""
    directions, batch, units = 2, 2, 3
    columns, state = 4 * units, Given((directions, batch, units))
    for form in ("symmetric", "asymmetric", "whole"):
        data, lengths = Given((3, batch, directions * columns)), Given((batch,), "int32")
        args = (data, _weights(directions, columns, units), state, lengths, state, Given((directions, 3 * units)),
                Given((directions, columns)))  # fmt: skip
        attrs = {"activations": ("sigmoid", "relu", "affine") * directions, "alphas": (1.0,) * 6, "betas": (0.0,) * 6,
                 "direction": "bidirectional", "quantizes": form, "cell_clip": 2.0}  # fmt: skip
        yield Spec("qnn.dynamic_lstm_steps", args, attrs, form)
        args = (Given((3, batch, directions * units)), _weights(directions, units, units), state, lengths,
                Given((directions, units)))  # fmt: skip
        attrs = {"activations": ("tanh",) * directions, "alphas": (1.0,) * 2, "betas": (0.0,) * 2,
                 "direction": "bidirectional", "quantizes": form}  # fmt: skip
        yield Spec("qnn.dynamic_rnn_steps", args, attrs, form)


def _recurrent_codes() -> Iterator[Spec]:
    """Yield TFLite's integer cells, with and without the optional arguments."""
    steps, batch, units, cells = 3, 2, 4, 5
    for dtype, zero in (("int16", 0), ("float32", 0), ("int8", -7)):
        state, weights = Given((batch, 6, 4), dtype), Given((6, 4), dtype)
        yield Spec("nn.svdf_time", (Given((batch, 6), dtype), state, weights), {"rank": 2, "state_zero": zero})
    for dtype, exponent in (("int8", -9), ("int16", -15)):
        args = [Given((batch, steps, 4 * units), "int16"), _weights(4 * units, units), Given((batch, units), dtype),
                Given((batch, units), "int16")]  # fmt: skip
        attrs: dict[str, Any] = {
            "recurrent_scales": (0.02, 3.0, 1e-9, 0.5), "shown_scale": 1e-4, "cell_exponent": exponent, "tables": True,
        }  # fmt: skip
        yield Spec("qnn.lstm_steps", tuple(args), attrs, f"{dtype} by tables")
    for gates, exponent, more in ((4, -15, True), (3, -9, True), (4, -12, False)):
        wide = cells if more else units
        args = [Given((batch, steps, gates * wide), "int16"), _weights(gates * wide, units),
                Given((batch, units), "int8"), Given((batch, wide), "int16")]  # fmt: skip
        attrs = {
            "recurrent_scales": (0.02, 3.0, 1e-9, 0.5)[:gates], "shown_scale": 1e-7, "shown_zero": -128,
            "hidden_zero": 127, "cell_exponent": exponent, "couples_input": gates == 3,
        }  # fmt: skip
        if more:
            args += [Given((gates - 1, wide), "int16"), Given((gates, wide), "int16"), Given((gates, wide), "int32"),
                     _weights(units, wide), Given((units,), "int32")]  # fmt: skip
            attrs |= {"norm_scales": (1e-4, 3.0, 1e-9, 0.2)[:gates], "norm_guards": (1, 9999, 3, 1)[:gates]}
            attrs |= {"peephole_scales": (2.0, 1e-3, 0.3)[: gates - 1], "projection_scale": 5.0, "cell_clip": 9,
                      "projection_clip": 100}  # fmt: skip
        yield Spec("qnn.lstm_steps", tuple(args), attrs, f"{gates} gates, 2**{exponent}")


_OF_CODES = ("abs", "elu", "erf", "exp", "gelu", "hardswish", "leaky_relu", "log", "rsqrt", "sigmoid")


def _quantized() -> Iterator[Spec]:
    for dtype in ("int8", "uint8"):
        x, zeros = Given((64,), dtype), (_zero(3), _zero(5))
        around = (_scale(0.05), zeros[0], _scale(0.07), zeros[1])
        for name in (*_OF_CODES, "sqrt", "tanh"):
            yield Spec(f"qnn.{name}", (x, *around), label=dtype)
        for name in ("add", "subtract", "mul", "div", "squared_difference"):
            yield Spec(f"qnn.{name}", (x, x, *around, _scale(0.1), zeros[0]), label=dtype)
        high = 127 if dtype == "int8" else 255
        for name, scale, zero in (("log_softmax", 1 / 16, high), ("l2_normalize", 1 / 128, high - 127)):
            yield Spec(f"qnn.{name}", (Given((3, 37), dtype), *around[:2], _scale(scale), _zero(zero)), label=dtype)
        yield Spec("qnn.prelu", (x, x, *around, _scale(0.1), zeros[0]), label=dtype)
        of_softmax = (_scale(1 / 256), _zero(-128 if dtype == "int8" else 0))
        yield Spec("qnn.softmax", (Given((3, 37), dtype), *around[:2], *of_softmax), {"axis": -1}, dtype)
        for name in ("mean", "prod"):
            yield Spec(f"qnn.{name}", (Given((3, 37), dtype), *around), {"axis": (1,)}, dtype)
        yield Spec("qnn.avg_pool2d", (Given((1, 5, 5, 3), dtype), *around),
                   {"pool_size": (2, 2), "layout": "NHWC"}, dtype)  # fmt: skip
        yield Spec("qnn.resize_bilinear", (Given((1, 3, 3, 2), dtype),), {"size": (5, 7)}, dtype)
        scales, offsets = (_scale(0.05), _scale(0.06)), zeros
        yield Spec("qnn.concatenate", ((x, x), scales, offsets, _scale(0.07), zeros[0]), {"axis": 0}, dtype)
    yield from _of_16_bits()
    for dtype in ("int8", "uint8", "int16", "uint16", "int32"):
        yield Spec("qnn.quantize", (Given((36,)), _scale(0.05), _zero(3)), {"out_dtype": dtype}, dtype)
        yield Spec("qnn.quantize", (Given((36,)), _scale(1e-30), _zero(0)),
                   {"out_dtype": dtype, "rounding": "TONEVEN"}, f"{dtype}-even")  # fmt: skip
        yield Spec("qnn.dequantize", (Given((36,), dtype), _scale(0.05), _zero(7)), label=dtype)
        for rounding in ("DOUBLE", "SINGLE", "UPWARD", "TONEAREST", "TONEVEN"):
            for out in ("uint8", "int32") if dtype == "int32" else ("int8",):
                for label, ratio in (("down", 0.01), ("up", 9.0)):
                    scales = (_scale(ratio), _zero(3), _scale(1.0), _zero(-5 if out[0] != "u" else 5))
                    yield Spec("qnn.requantize", (Given((36,), dtype), *scales),
                               {"rounding": rounding, "out_dtype": out}, f"{out}-{rounding}-{label}")  # fmt: skip
    yield Spec("qnn.symmetric_quantize", (Given((1296,)), Given((1296,))))
    yield Spec("qnn.asymmetric_scale", (Given((1296,)), Given((1296,))))
    yield Spec("qnn.asymmetric_zero_point", (Given((1296,)), Given((1296,))))
    yield Spec("qnn.centred_quantize", (Given((1296,)), Given((1296,)), Given((1296,), "int32")))


def _of_16_bits() -> Iterator[Spec]:
    x, zero, dtype = Given((64,), "int16"), _zero(0), "int16"
    around, unit = (_scale(2e-3), zero, _scale(3e-3), zero), (_scale(2.0**-15), zero)
    for name in ("abs", "exp", "gelu", "leaky_relu", "log", "rsqrt"):
        yield Spec(f"qnn.{name}", (x, *around), label=dtype)
    for name in ("sigmoid", "tanh"):
        for scale in (2.0**-12, 7e-4, 0.5):
            yield Spec(f"qnn.{name}", (x, _scale(scale), zero, *unit), label=f"{dtype}-{scale:g}")
    for name in ("add", "subtract", "mul", "div"):
        yield Spec(f"qnn.{name}", (x, x, *around, _scale(1e-3), zero), label=dtype)
    for name in ("add", "subtract"):
        scales = (_scale(2.0**-12), zero, _scale(2.0**-15), zero, _scale(2.0**-12), zero)
        yield Spec(f"qnn.{name}", (x, x, *scales), {"shifted": True}, f"{dtype}-shifted")
    yield Spec("qnn.prelu", (x, Given((64,), "int8"), *around, _scale(0.1), zero), label=dtype)
    yield Spec("qnn.softmax", (Given((3, 37), dtype), *around[:2], *unit), {"axis": -1}, dtype)
    for name in ("mean", "prod"):
        yield Spec(f"qnn.{name}", (Given((3, 37), dtype), *around), {"axis": (1,)}, dtype)
    yield Spec("qnn.avg_pool2d", (Given((1, 5, 5, 3), dtype), *around),
               {"pool_size": (2, 2), "layout": "NHWC"}, dtype)  # fmt: skip
    yield Spec("qnn.resize_bilinear", (Given((1, 3, 3, 2), dtype),), {"size": (5, 7)}, dtype)
    for rounding in ("REDUCED", "FLOAT64"):
        for label, ratio in (("down", 0.01), ("up", 9.0)):
            scales = (_scale(ratio), _zero(3), _scale(1.0), _zero(-5))
            yield Spec("qnn.requantize", (Given((36,), "int64"), *scales),
                       {"rounding": rounding, "out_dtype": "int16"}, f"int64-{rounding}-{label}")  # fmt: skip


def _quantized_products() -> Iterator[Spec]:
    around = (_zero(3), _zero(0), _scale(0.05), _scale(0.07))
    for dtype in ("int8", "uint8"):
        yield Spec("qnn.conv2d", (Given((1, 5, 5, 4), dtype), _weights(3, 3, 4, 3), *around),
                   {"channels": 3, "kernel_size": (3, 3), "padding": (1, 1, 1, 1), "data_layout": "NHWC",
                    "kernel_layout": "HWIO", "out_dtype": "int32"}, dtype)  # fmt: skip
        yield Spec("qnn.conv2d", (Given((1, 5, 5, 4), dtype), _weights(3, 3, 4, 1), *around),
                   {"channels": 4, "groups": 4, "kernel_size": (3, 3), "data_layout": "NHWC",
                    "kernel_layout": "HWOI", "out_dtype": "int32"}, f"depthwise-{dtype}")  # fmt: skip
        yield Spec("qnn.conv2d_transpose", (Given((1, 4, 4, 3), dtype), _weights(3, 2, 2, 2), *around),
                   {"channels": 2, "kernel_size": (2, 2), "strides": (2, 2), "data_layout": "NHWC",
                    "kernel_layout": "IOHW", "out_dtype": "int32"}, dtype)  # fmt: skip
        yield Spec("qnn.dense", (Given((2, 37), dtype), _weights(5, 37), *around), {"units": 5}, dtype)
    symmetric = (_zero(0), _zero(0), _scale(0.05), _scale(0.07))
    for length, label in ((37, "narrow"), (700, "wide")):
        yield Spec("qnn.dense", (Given((2, length), "int16"), _weights(5, length), *symmetric),
                   {"units": 5, "out_dtype": "int64"}, f"int16-{label}")  # fmt: skip
    yield Spec("qnn.batch_matmul", (Given((2, 3, 37), "int16"), Given((2, 5, 37), "int16"), *symmetric),
               {"out_dtype": "int64", "transpose_b": True}, "int16")  # fmt: skip
    for dtype in ("int8", "uint8"):
        yield Spec("qnn.conv2d", (Given((1, 5, 5, 4), dtype), Given((3, 3, 4, 3), dtype), *around),
                   {"padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO", "out_dtype": "int32"},
                   f"late-{dtype}")  # fmt: skip
    yield Spec("qnn.batch_matmul", (Given((2, 3, 37), "int8"), Given((2, 5, 37), "int8"), *around),
               {"out_dtype": "int32", "transpose_b": True})  # fmt: skip


def _packed_weights() -> Iterator[Spec]:
    import ml_dtypes

    scales = np.linspace(-0.1, 3.0, 20, dtype=np.float32).reshape(5, 4)
    for dtype in ("int4", "uint4", "int2", "uint2", "int8", "uint8"):
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        codes = np.resize(np.asarray([0, 1, 255, 128, 127, 3, 2], np.uint8), (5, 37)).astype(np.int32).astype(kind)
        zero = np.arange(20, dtype=np.int32).reshape(5, 4) % 3
        pair, block = (scales, zero), {"block_size": 10}
        yield Spec("qnn.weight_only_dense", (Given((2, 37)), codes, *pair), {"units": 5, **block}, f"{dtype}-blocks")
        yield Spec("qnn.weight_only_dense", (Given((8, 37)), codes, scales[:, :1], zero[:1, :1]), {"units": 5}, dtype)
        yield Spec("qnn.weight_only_take", (codes, Given((36,), "int32"), *pair), block, dtype)
        # variables of sub-byte dtypes are bytes that also have bits above those of the dtype
        data = Given((5, 37), dtype) if dtype in ("int8", "uint8") else codes
        yield Spec("qnn.dequantize_blocks", (data, scales, zero.astype(np.float32)), {"axis": 1, **block}, dtype)
        if dtype not in ("int8", "uint8"):
            yield Spec("qnn.unpack", (Given((3, 9), "uint8"),), {"out_dtype": dtype, "extent": 17}, dtype)
        for rank in (1, 2, 3):
            letters = "DHW"[-rank:]
            kernel = np.resize(codes, (*(2,) * rank, 4, 5))
            side = 2 if rank == 3 else 4
            yield Spec(f"qnn.weight_only_conv{rank}d",
                       (Given((1, *(side,) * rank, 4)), kernel, scales[:, 0], zero[:, 0]),
                       {"channels": 5, "padding": (1,) * max(rank, 2) if rank != 2 else (1, 1, 1, 1),
                        "data_layout": f"N{letters}C", "kernel_layout": f"{letters}IO"}, dtype)  # fmt: skip


def _signals() -> Iterator[Spec]:
    for dtype, length in (("int16", 60), ("int16", 16), ("int32", 24), ("float32", 20)):
        yield Spec("signal.rfft", (Given((2, length), dtype),), label=f"{dtype}-{length}")
        yield Spec("signal.irfft", (Given((2, length + 2), dtype),), label=f"{dtype}-{length}")
    yield Spec("signal.scale_bits", (Given((30,), "int16"),))
    tables = [np.asarray(table, np.int16) for table in ((0, 5, 30, -2), (0, 6, 90, 3), (6, 9, 40, 3))]
    weights = np.resize(np.asarray([-32768, 32767, 1, 4096], np.int16), 20)
    yield Spec("signal.filter_bank", (Given((33,), "uint32"), weights, weights, *tables))
    yield Spec("signal.square_root", (Given((30,), "uint64"), Given((), "int32")))
    for bits, scale in ((3, 64), (31, 1 << 30)):
        yield Spec("signal.log", (Given((40,), "uint32"),), {"correction_bits": bits, "output_scale": scale}, str(bits))
    gains = np.resize(np.asarray([32767, -32768, 0, 1, -1, 4096], np.int16), 125)
    for shift in (6, 63):
        yield Spec(
            "signal.gain", (Given((40,), "uint32"), Given((40,), "uint32"), gains), {"snr_shift": shift}, str(shift)
        )
    for dtype in ("int16", "float32"):
        frames = (Given((2, 3, 10), dtype), Given((2, 10), dtype))
        yield Spec("signal.overlap_add", frames, {"frame_step": 4}, dtype)
