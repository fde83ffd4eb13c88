"""Models and inputs whose floats are off by a unit in the last place.

What a reference makes of them shows how much of its own result is rounding, without a look at our code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import MlfcError
from mlfc.runtime.tensor.npz import flattened
from mlfc.support.arrays import Array
from mlfc.verify.difference import largest_difference
from mlfc.verify.reference import LITERT, Reference

if TYPE_CHECKING:
    from onnx import GraphProto

_LARGEST_MODEL = 1 << 30
_VARIANTS = 3
# last bits of float16 are so much larger than those of float32
_STORED_STEP = 2.0**13
# last places, about what floats may differ by: enough for codes to round the other way, as they do now and then
_COARSE = 256
# whole numbers up to here, and numbers with no more bits than that, count as exact
_FEW = 2**11
# ONNX operators that take floats as sizes and places: a last bit more may be an element more
_SIZES = ("Resize", "Upsample", "Range", "NonMaxSuppression")


class OwnRounding:
    """How much of a reference's result is rounding.

    `layers`: whether to compare all tensors.
    `is_quantized`: whether the model rounds what it computes to codes. A last bit moves few of them, and those that it
    moves may change a result by a percent: such models are run with larger changes, too.
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
        """Return the largest |difference| of each tensor between runs that differ in last bits of weights and inputs.

        Weights that are kept in float16 and computed with in float32 change by float16's last bits, and what that does
        counts by the ratio of the two: results follow small changes nearly in proportion.
        """
        largest = dict.fromkeys(tensors, 0.0)
        for (scale, most), variants in self._variants.items():
            for first, second in combinations(
                [_run(variant, seed, inputs, most, tensors) for seed, variant in enumerate(variants)], 2
            ):
                for tensor in first.keys() & second.keys():
                    if first[tensor].size == second[tensor].size:
                        apart = scale * largest_difference(first[tensor], second[tensor])
                        largest[tensor] = max(largest[tensor], apart if np.isfinite(apart) else 0.0)
        return largest


def nudged(array: Array, random: np.random.Generator, most: int = 1) -> Array:
    """Return an array whose floats are up to `most` units in the last place lower, or higher; zeros stay.

    So do infinities, NaN and what lies at the ends of a dtype's range, which masks are made of: one unit more is none.
    An array of numbers that are exact stays as it is.
    """
    if array.dtype.kind != "f" or _is_exact(array):
        return array
    steps = random.integers(-most, most + 1, array.shape)
    kept = (array == 0) | ~(np.abs(array) < np.finfo(array.dtype).max / 2)
    moved = np.where(kept, 0, array)
    return np.where(kept, array, moved + steps * np.abs(np.spacing(moved))).astype(array.dtype)


def _nudged(value: Any, random: np.random.Generator, most: int) -> Any:
    """Return an input with other last bits: an array, a list of arrays, or None."""
    if isinstance(value, list):
        return [nudged(item, random, most) for item in value]
    return None if value is None else nudged(value, random, most)


def _is_exact(values: Array) -> bool:
    """Tell whether floats are meant as they stand: all of them whole numbers, or a single one of few bits as 0.5.

    With an exponent that is not quite 2, negative numbers have no power; with a 1 that is not quite one, ``1 - mask``
    hides what was to be seen.
    """
    if values.size == 1:
        values = np.frexp(values)[0] * _FEW
    return bool(np.all((np.abs(values) <= _FEW) & (values == np.round(values))))


def _run(
    variant: Reference, seed: int, inputs: Mapping[str, Array], most: int, tensors: Collection[str]
) -> dict[str, Array]:
    """Return the tensors with these names from a run with other last bits of the inputs."""
    random = np.random.default_rng(seed)
    results = flattened(variant.run({name: _nudged(value, random, most) for name, value in inputs.items()}))
    variant.begin()  # LiteRT keeps every tensor of the last run
    return {name: results[name] for name in tensors if name in results}


def _variant(
    path: Path, title: str, random: np.random.Generator, *, layers: bool, stored: bool, most: int
) -> Reference | None:
    """Return the reference of a model with other last bits; None where there is nothing to change or it is refused.

    `stored` changes what is kept in float16 and computed with in float32, otherwise all else changes.
    """
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
    except MlfcError:  # a copy of the model does not find what lies beside it
        return None


def _nudged_tflite(data: bytes, random: np.random.Generator, *, stored: bool, most: int) -> tuple[bytes, int]:
    """Return a model with other constants, and how many are others."""
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
    """Change the constants of a model, those in branches and loops too, and return how many."""
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
    """Yield a graph and those in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)
