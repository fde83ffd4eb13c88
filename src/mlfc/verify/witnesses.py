"""Evidence for rounding: the model in float64, and references with perturbed floats.

The imported graph is compiled in float64 by the backend that did not generate the judged code; quantization stays in
float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.archive.read.load import load_factory
from mlfc.compiler import build_module
from mlfc.errors import MlfcError
from mlfc.options import BuildOptions
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, GlobalVar, If, IRModule, TensorType, Tuple, Var
from mlfc.relay.op import Operator
from mlfc.relay.visitor import children, post_order, with_children
from mlfc.runtime.modules.runnable import Runnable
from mlfc.runtime.tensor.npz import flattened
from mlfc.support import dtypes
from mlfc.support.tensor_info import Array
from mlfc.target.target import parse_target
from mlfc.verify.difference import largest_difference
from mlfc.verify.reference import LITERT, Reference

if TYPE_CHECKING:
    from onnx import GraphProto

_LARGEST_MODEL = 1 << 30
_VARIANTS = 3
# ratio of the ulps of float16 and float32
_STORED_STEP = 2.0**13
# perturbation in ulps, about the usual difference of floats: enough for some codes to round the other way
_COARSE = 256
# integers up to this value, and single numbers with no more significant bits, count as exact
_FEW = 2**11
# ONNX operators with floats as sizes or positions: one ulp may change the number of elements
_SIZES = ("Resize", "Upsample", "Range", "NonMaxSuppression")
WIDE = "float64"
_DTYPE_ATTRS = ("dtype", "out_dtype")


class OwnRounding:
    """The rounding error of a reference's results, estimated by perturbed runs.

    `layers`: whether to compare all tensors.
    `is_quantized`: whether the model rounds computed values to codes. One ulp changes few codes, but a changed code may
    change a result by a percent, so such models are also run with larger perturbations.
    """

    def __init__(self, path: Path, title: str, *, layers: bool, is_quantized: bool = False) -> None:
        self._variants: dict[tuple[float, int], list[Reference]] = {}
        if path.stat().st_size > _LARGEST_MODEL:
            return
        coarse = [(1.0, False, _COARSE)] if is_quantized else []
        for scale, stored, most in ((1.0, False, 1), (1.0 / _STORED_STEP, True, 1), *coarse):
            randoms = [np.random.default_rng(seed) for seed in range(_VARIANTS)]
            variants = [_variant(path, title, random, layers=layers, stored=stored, most=most) for random in randoms]
            self._variants[scale, most] = [variant for variant in variants if variant is not None]

    def of(self, tensors: Collection[str], inputs: Mapping[str, Array]) -> dict[str, float]:
        """Return the largest |difference| of each tensor between runs with perturbed weights and inputs.

        Weights that are stored in float16 and used in float32 change by float16 ulps. The resulting difference is
        scaled down by the ratio of the ulps, since results are nearly linear in small changes.
        """
        largest = dict.fromkeys(tensors, 0.0)
        for (scale, most), variants in self._variants.items():
            runs = [_run(variant, seed, inputs, most, tensors) for seed, variant in enumerate(variants)]
            for first, second in combinations(runs, 2):
                for tensor in first.keys() & second.keys():
                    if first[tensor].size == second[tensor].size:
                        apart = scale * largest_difference(first[tensor], second[tensor])
                        largest[tensor] = max(largest[tensor], apart if np.isfinite(apart) else 0.0)
        return largest


def nudged(array: Any, random: np.random.Generator, most: int = 1) -> Any:
    """Return an array, or a list of arrays, with floats perturbed by up to `most` ulps; zeros are unchanged.

    Infinities, NaN and values at the ends of a dtype's range, which masks use, are also unchanged, as are arrays of
    exact numbers and None.
    """
    if isinstance(array, list):
        return [nudged(item, random, most) for item in array]
    if array is None or array.dtype.kind != "f" or _is_exact(array):
        return array
    steps = random.integers(-most, most + 1, array.shape)
    kept = (array == 0) | ~(np.abs(array) < np.finfo(array.dtype).max / 2)
    moved = np.where(kept, 0, array)
    return np.where(kept, array, moved + steps * np.abs(np.spacing(moved))).astype(array.dtype)


def _is_exact(values: Array) -> bool:
    """Return whether floats are exact: integers, or a single number of few bits, such as the exponent 2 of a power."""
    if values.size == 1:
        values = np.frexp(values)[0] * _FEW
    return bool(np.all((np.abs(values) <= _FEW) & (values == np.round(values))))


def _run(
    variant: Reference, seed: int, inputs: Mapping[str, Array], most: int, tensors: Collection[str]
) -> dict[str, Array]:
    """Return the named tensors of a run with perturbed inputs; other tensors are released."""
    random = np.random.default_rng(seed)
    results = flattened(variant.run({name: nudged(value, random, most) for name, value in inputs.items()}))
    variant.begin()  # releases the tensors of the last run in LiteRT
    return {name: results[name] for name in tensors if name in results}


def _variant(
    path: Path, title: str, random: np.random.Generator, *, layers: bool, stored: bool, most: int
) -> Reference | None:
    """Return a reference with perturbed weights (`stored`: only those stored in float16); None if not possible."""
    try:
        if title == LITERT:
            from mlfc.verify.litert import LiteRtReference as LiteRT

            data, count = _nudged_tflite(path.read_bytes(), random, stored=stored, most=most)
            return None if stored and not count else LiteRT(data)
        from mlfc.verify.onnxruntime import OnnxRuntimeReference as OnnxRuntime

        counts: list[int] = []
        changed = OnnxRuntime(
            path,
            layers=layers,
            changed=lambda model: counts.append(_nudge_onnx(model, random, stored=stored, most=most)),
        )
        return None if stored and not counts[0] else changed
    except MlfcError:  # a copy of the model cannot find its external files
        return None


def _nudged_tflite(data: bytes, random: np.random.Generator, *, stored: bool, most: int) -> tuple[bytes, int]:
    """Return a model with perturbed constants, and their number."""
    import tflite

    changed = bytearray(data)
    model = tflite.Model.GetRootAs(changed, 0)
    wanted, kind = (tflite.TensorType.FLOAT16, np.float16) if stored else (tflite.TensorType.FLOAT32, np.float32)
    seen = set()
    for index in range(model.SubgraphsLength()):
        graph = model.Subgraphs(index)
        for number in range(graph.TensorsLength()):
            tensor = graph.Tensors(number)
            place = tensor.Buffer()
            if tensor.Type() == wanted and place not in seen and model.Buffers(place).DataLength():
                seen.add(place)
                values = model.Buffers(place).DataAsNumpy().view(kind)  # of `changed` itself
                values[...] = nudged(values, random, most)
    return bytes(changed), len(seen)


def _nudge_onnx(model: object, random: np.random.Generator, *, stored: bool, most: int) -> int:
    """Perturb the constants of a model, including those in branches and loops; return their number."""
    from onnx import ModelProto, TensorProto, numpy_helper

    assert isinstance(model, ModelProto)
    graphs = list(_graphs(model.graph))
    nodes = [node for graph in graphs for node in graph.node]
    sizes = {name for node in nodes if node.op_type in _SIZES for name in node.input}
    widened = {name for node in nodes if node.op_type == "Cast" for name in node.input}
    tensors = [(tensor.name, tensor) for graph in graphs for tensor in graph.initializer]
    for node in nodes:
        if node.op_type == "Constant":
            tensors += [(node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value"]
    count = 0
    for name, tensor in tensors:
        if name in sizes or (name in widened) != stored:
            continue
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
            values = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(nudged(values, random, most), tensor.name))
            count += 1
    return count


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and the subgraphs of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def float64_model(
    module: IRModule, params: Mapping[str, Array], target: str, more: Sequence[Expr] = ()
) -> tuple[Runnable, tuple[str, ...]]:
    """Compile a model in float64; return it and the names of the outputs for `more`.

    `module`: from an importer.
    `target`: of the judged code; the float64 model uses the other backend.
    `more`: tensors of the model to add to its outputs.
    """
    wide, names = in_float64(module, more)
    other = "c" if parse_target(target).kind == "llvm" else "llvm"
    return load_factory(build_module(wide, params, BuildOptions(other, module_name="float64"))), names


def in_float64(module: IRModule, more: Sequence[Expr] = ()) -> tuple[IRModule, tuple[str, ...]]:
    """Return a model with all floats, including outputs, in float64, and the names of the outputs for `more`."""
    body, heads = module.main.body, module.outputs
    defined = body.fields[len(heads) :] if isinstance(body, Tuple) else ()
    wide = _widened(Tuple((*heads, *more, *defined)))
    names = tuple(f"{index} of float64" for index in range(len(more)))
    functions = {name: _function(function) for name, function in module.functions.items() if name != "main"}
    functions["main"] = replace(module.main, body=wide)
    return replace(module, functions=functions, output_names=(*module.output_names, *names)), names


def _function(function: Function) -> Function:
    """Return the function of a branch or loop in float64, including its parameters."""
    params: list[Var] = []
    for param in function.params:
        wide = _wide_type(param.type)
        assert not isinstance(wide, ir.FuncType)
        params.append(Var(param.name, wide, param.span))
    body = _widened(function.body, dict(zip(function.params, params, strict=True)))
    return Function(tuple(params), body, function.attrs, function.span)


def _is_narrow(kind: ir.Type) -> bool:
    return isinstance(kind, TensorType) and dtypes.is_float(kind.dtype) and kind.dtype != WIDE


def _widened(body: Expr, params: Mapping[Expr, Expr] | None = None) -> Expr:
    done: dict[Expr, Expr] = {**(params or {})}
    for node in post_order(body):
        if node not in done:
            done[node] = _wide_node(node, [done[child] for child in children(node)])
    return done[body]


def _wide_node(node: Expr, args: list[Expr]) -> Expr:
    if isinstance(node, Constant):
        return Constant(node.data.astype(WIDE), node.name, node.span) if _is_narrow(node.type) else node
    if isinstance(node, Var):
        return _cast(node)
    if isinstance(node, If):
        then, otherwise = _wide_reference(node.then), _wide_reference(node.otherwise)
        kind = _wide_type(node.type)
        return replace(node, condition=args[0], args=tuple(args[1:]), then=then, otherwise=otherwise, type=kind)
    if not isinstance(node, Call):
        return with_children(node, args)
    if isinstance(node.op, GlobalVar):
        return ir.call_function(_wide_reference(node.op), args, type=_wide_type(node.type), span=node.span)
    if isinstance(node.op, Operator):
        attrs = dict(node.attrs)
        for name in _DTYPE_ATTRS:
            if attrs.get(name) in dtypes.FLOATS:
                attrs[name] = WIDE
        try:
            wide = ir.call(node.op.name, args, attrs, span=node.span)
            if _wide_type(node.type) == wide.type:
                return wide
        except MlfcError:
            pass  # the operator does not support float64
    return _as_defined(node, args)


def _wide_reference(reference: GlobalVar) -> GlobalVar:
    kind = reference.type
    return replace(reference, type=ir.FuncType(tuple(map(_wide_type, kind.params)), _wide_type(kind.result)))


def _wide_type(kind: ir.Type) -> ir.Type:
    if isinstance(kind, ir.TupleType):
        return ir.TupleType(tuple(_wide_type(field) for field in kind.fields))
    return replace(kind, dtype=WIDE) if isinstance(kind, TensorType) and _is_narrow(kind) else kind


def _as_defined(node: Call, args: Sequence[Expr]) -> Expr:
    """Return a call in its original dtypes, between casts."""
    narrow = [_narrowed(arg, was) for arg, was in zip(args, node.args, strict=True)]
    result = with_children(node, narrow)
    if isinstance(node.type, ir.TupleType):
        return Tuple(tuple(_cast(ir.TupleGetItem(result, index)) for index in range(len(node.type.fields))))
    return _cast(result)


def _cast(expr: Expr) -> Expr:
    return ir.call("cast", [expr], dtype=WIDE) if _is_narrow(expr.type) else expr


def _narrowed(arg: Expr, was: Expr) -> Expr:
    if isinstance(arg, Tuple) and isinstance(was.type, ir.TupleType):
        fields = was.fields if isinstance(was, Tuple) else [ir.TupleGetItem(was, i) for i in range(len(arg.fields))]
        return Tuple(tuple(_narrowed(one, other) for one, other in zip(arg.fields, fields, strict=True)))
    if not isinstance(was.type, TensorType) or not _is_narrow(was.type):
        return arg
    if isinstance(was, Constant):
        return was
    return ir.call("cast", [arg], dtype=was.type.dtype)
