"""The second half of an SVDF layer: a weighted sum of each filter's outputs over the last steps."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import declare, divided
from mlfc.relay import ir as relay
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Expr

_SUMS = {"int8": "int32", "int16": "int32", "float32": "float32"}


def _infer(name: str, attrs: Attrs, feature: TensorType, state: TensorType, weights: TensorType) -> TensorType:
    """Check feature (batch, filters), state (batch, filters, memory) and weights (filters, memory)."""
    if feature.dtype not in _SUMS or not feature.dtype == state.dtype == weights.dtype:
        raise TypeCheckError(
            f"{name}: expected tensors of int8, int16 or float32, got {feature}, {state} and {weights}"
        )
    if len(feature.shape) != 2 or len(weights.shape) != 2 or 0 in (*feature.shape, *weights.shape):
        raise TypeCheckError(f"{name}: expected matrices that are not empty, got {feature.shape} and {weights.shape}")
    filters, memory = weights.shape
    if feature.shape[1] != filters or state.shape != (*feature.shape, memory):
        raise TypeCheckError(f"{name}: tensors of {feature.shape}, {state.shape} and {weights.shape} do not fit")
    if attrs["state_zero"] and feature.dtype == "float32":
        raise TypeCheckError(f"{name}: a state of floats has no zero point")
    if attrs["rank"] < 1:
        raise TypeCheckError(f"{name}: expected a rank of at least 1 for {filters} filters, got {attrs['rank']}")
    return TensorType((feature.shape[0], divided(name, filters, attrs["rank"], "filters")), _SUMS[feature.dtype])


def _in_tvm(args: Sequence[relay.Expr], attrs: Attrs, out: TensorType) -> relay.Expr:
    newest = relay.call("expand_dims", [args[0]], axis=2)
    end = relay.tensor_type(args[1]).shape[2:]
    steps = relay.call("strided_slice", [args[1]], begin=(1,), end=end, strides=(1,), axes=(2,))
    codes = relay.call("cast", [relay.call("concatenate", [relay.Tuple((steps, newest))], axis=2)], dtype=out.dtype)
    codes = relay.call("subtract", [codes, relay.const(attrs["state_zero"], out.dtype)])
    products = relay.call("multiply", [codes, relay.call("cast", [args[2]], dtype=out.dtype)])
    sums = relay.call("sum", [products], axis=(2,))
    return relay.call("sum", [relay.call("reshape", [sums], newshape=(*out.shape, attrs["rank"]))], axis=(2,))


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    feature, state, weights = inputs
    stmts, memory, rank = ctx.stmts, weights.shape[1], attrs["rank"]
    with stmts.loop(out.shape[0], "row") as row, stmts.loop(out.shape[1], "unit") as unit:
        total = stmts.filled("total", 1, out.dtype)

        def add(a: Expr, b: Expr) -> None:
            code = tb.cast(a, out.dtype)
            product = (code - attrs["state_zero"] if attrs["state_zero"] else code) * tb.cast(b, out.dtype)
            before = tb.load(total, [0])
            if out.dtype == "int32":  # modulo 2**32
                stmts.store(total, [0], tb.cast(tb.cast(before, "uint32") + tb.cast(product, "uint32"), "int32"))
            else:
                stmts.store(total, [0], before + product)

        with stmts.loop(rank, "part") as part:
            place = unit * rank + part
            with stmts.loop(memory - 1, "step") as step:
                add(state(row, place, step + 1), weights(place, step))
            add(feature(row, place), weights(place, memory - 1))
        out.store([row, unit], tb.load(total, [0]))


declare("nn.svdf_time", 3, _infer, Kind.REDUCE, (Attr("rank", REQUIRED), Attr("state_zero", 0)), emit=_emit,
        in_tvm=_in_tvm, macs=lambda types, _, __: types[0].shape[0] * types[2].size,
        contract="exact on integers, with int32 sums; floats in the order of the steps",
        doc="Sums of filters over the last steps: the feature, and the state except its oldest step")  # fmt: skip
