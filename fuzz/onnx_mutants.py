"""Structural mutations of ONNX's node tests: valid models that no exporter writes.

A mutation changes a model and its feeds in place, and raises `UnfitError` if it does not apply. Models need not stay
valid: the caller drops those that no reference runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import AttributeProto, helper, numpy_helper, version_converter
from onnx.defs import get_schema

from mlfc.support import dtypes
from tests.edge_cases import edges
from tests.interop.test_onnx_nodes import Case, claimed

Array = npt.NDArray[Any]
onnxruntime.set_default_logger_severity(4)
_FLOAT8 = {f"tensor({name.replace('_', '')})": name for name in
           ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")}  # fmt: skip
_OPSETS = range(6, 26)
_STRINGS = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "mode": ("constant", "reflect", "edge", "wrap", "nearest", "linear", "cubic", "DCR", "CRD", "bilinear", "bicubic"),
    "padding_mode": ("zeros", "border", "reflection"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "coordinate_transformation_mode": ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
                                       "half_pixel_symmetric", "tf_crop_and_resize"),
    "direction": ("forward", "reverse", "bidirectional", "LEFT", "RIGHT"),
    "reduction": ("none", "sum", "mean", "add", "mul", "max", "min"),
}  # fmt: skip


class UnfitError(Exception):
    """A mutation that does not apply to a model."""


@dataclass
class Drawing:
    """Random choices of a mutation."""

    rng: np.random.Generator

    def pick(self, options: Sequence[Any]) -> Any:
        """Return one of some options."""
        if not options:
            raise UnfitError
        return options[int(self.rng.integers(len(options)))]

    def chance(self, share: float) -> bool:
        """Return True with a probability."""
        return bool(self.rng.random() < share)


@dataclass
class Mutant(Drawing):
    """A model with feeds, and the names of its node test and mutations."""

    model: onnx.ModelProto
    feeds: dict[str, Array]
    names: list[str] = field(default_factory=list)
    is_extreme: bool = False

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph."""
        return self.model.graph

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return next((item.version for item in self.model.opset_import if not item.domain), 1)

    def arrays(self) -> dict[str, Array]:
        """Return feeds and initializers."""
        return {**self.feeds, **{item.name: numpy_helper.to_array(item) for item in self.graph.initializer}}

    def put(self, name: str, array: Array) -> None:
        """Replace the value of a feed or initializer."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        if name in self.feeds:
            info = next(item for item in self.graph.input if item.name == name)
            info.CopyFrom(info_of(name, array))
            self.feeds[name] = array
        else:
            item = next(item for item in self.graph.initializer if item.name == name)
            item.CopyFrom(numpy_helper.from_array(array, name))

    def constant(self, name: str, array: Array) -> str:
        """Add a value as an initializer, or sometimes as an input; return its name."""
        if self.chance(0.25):
            self.graph.input.append(info_of(name, array))
            self.feeds[name] = array
        else:
            self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def results(self) -> dict[str, Array]:
        """Return the outputs that ONNX Runtime computes."""
        try:
            return by_onnxruntime(self.model, self.feeds)
        except Exception as error:  # its errors have no common base
            raise UnfitError from error


def info_of(name: str, array: Array) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """Return the results of ONNX Runtime without any optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    infos = session.get_outputs()
    if any(item.type == "tensor(bfloat16)" for item in infos):
        raise UnfitError("NOT_IMPLEMENTED: bfloat16 arrays from ONNX Runtime")
    results = zip(infos, session.run([item.name for item in infos], feeds), strict=True)
    # elements of float8 are returned as bytes
    return {item.name: array.view(dtypes.to_numpy(_FLOAT8[item.type])) if item.type in _FLOAT8 else array
            for item, array in results}  # fmt: skip


def _bare(model: onnx.ModelProto) -> None:
    """Drop the declared types of computed tensors, which mutations change."""
    del model.graph.value_info[:]
    for item in model.graph.output:
        item.CopyFrom(onnx.ValueInfoProto(name=item.name))


# ---- values, dtypes, shapes


def extremes(m: Any) -> None:
    """Put edge values into a feed or constant of a mutant of either format."""
    name = m.pick([name for name, array in m.arrays().items() if array.size and array.dtype.kind in "fiuV"])
    array = m.arrays()[name].copy()
    values = edges(array.dtype.name)
    if m.chance(0.5) and array.dtype.kind in "fV":
        values = values[~np.isfinite(values.astype(np.float64)) | (np.abs(values.astype(np.float64)) < 1)]
    places = m.rng.random(array.shape) < m.pick((0.05, 0.3, 1.0))
    drawn = values[m.rng.integers(len(values), size=array.shape)]
    m.put(name, np.where(places, drawn, array).astype(array.dtype))
    m.is_extreme = True


def _dtype(m: Mutant) -> None:
    arrays = m.arrays()
    node = m.pick([node for node in m.graph.node if any(name in arrays for name in node.input)])
    version = next((item.version for item in m.model.opset_import if item.domain == node.domain), 1)
    try:
        schema = get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError as error:
        raise UnfitError from error
    formals = [schema.inputs[min(place, len(schema.inputs) - 1)].type_str for place in range(len(node.input))]
    kinds = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}
    options = [kind for kind, name in zip(formals, node.input, strict=True) if kind in kinds and name in arrays]
    chosen = m.pick(options)
    words = [word[7:-1] for word in kinds[chosen] if word.startswith("tensor(")]
    word = m.pick([word for word in words if word not in ("string", "complex64", "complex128")])
    dtype = helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, word.upper()))
    for kind, name in zip(formals, node.input, strict=True):
        if kind == chosen and name in arrays:
            with np.errstate(all="ignore"):
                array = arrays[name]
                wide = array * 5 if array.dtype.kind == "f" and np.dtype(dtype).kind in "iu" else array
                m.put(name, wide.astype(dtype))


def _resized(array: Array, axis: int, extent: int) -> Array:
    if array.shape[axis] == 0:
        return np.zeros((*array.shape[:axis], extent, *array.shape[axis + 1 :]), array.dtype)
    return np.take(array, np.arange(extent) % array.shape[axis], axis)


def extent(m: Any) -> None:
    """Give an axis another size, and mostly all axes of the same size."""
    arrays = m.arrays()
    name = m.pick([name for name, array in arrays.items() if array.ndim])
    axis = int(m.rng.integers(arrays[name].ndim))
    old = arrays[name].shape[axis]
    new = m.pick((0, 0, 1, 1, 1, 2, old + 1, 5, 17, 33))
    alone = m.chance(0.3)
    for other, array in arrays.items():
        resized = array
        for place in range(array.ndim):
            if (other, place) == (name, axis) or (not alone and array.shape[place] == old and m.chance(0.8)):
                resized = _resized(resized, place, new)
        if resized.shape != array.shape:
            m.put(other, resized)


def rank(m: Any) -> None:
    """Add an axis to a tensor or to all, or remove axes."""
    arrays = m.arrays()
    chosen = list(arrays) if m.chance(0.3) else [m.pick(list(arrays))]
    change: Callable[[Array], Array] = m.pick((
        lambda a: a[None], lambda a: a[..., None], lambda a: np.stack([a, a]), lambda a: a.reshape(-1),
        lambda a: a[0] if a.ndim and a.size else a, lambda a: a.reshape(-1)[:1].reshape(()) if a.size else a,
    ))  # fmt: skip
    for name in chosen:
        m.put(name, change(arrays[name]))


def _swapped(m: Mutant) -> None:
    node = m.pick([node for node in m.graph.node if len(node.input) > 1])
    one, two = m.rng.permutation(len(node.input))[:2]
    names = list(node.input)
    node.input[one] = names[two]
    if m.chance(0.5):
        node.input[two] = names[one]


# ---- attributes, opsets, optional inputs


def _attributes_of(operator: str) -> list[AttributeProto]:
    return _attribute_index()[operator]


@cache
def _attribute_index() -> dict[str, list[AttributeProto]]:
    """Return the attributes of all tests by operator."""
    found = defaultdict(list)
    for case in claimed():
        for node in case.model.graph.node:
            found[node.op_type] += [item for item in node.attribute if item.type != AttributeProto.GRAPH]
    return found


def _attribute(m: Mutant) -> None:
    node = m.pick([node for node in m.graph.node if _attributes_of(node.op_type)])
    if m.chance(0.35):
        item = m.pick(_attributes_of(node.op_type))
        kept = [other for other in node.attribute if other.name != item.name]
        del node.attribute[:]
        node.attribute.extend([*kept, item])
        if m.chance(0.5):
            return
    item = m.pick([item for item in node.attribute if item.type != AttributeProto.GRAPH])
    if m.chance(0.2):
        node.attribute.remove(item)
    elif item.type == AttributeProto.INT:
        item.i = m.pick((-item.i, item.i - 1, item.i + 1, -1, 0, 1, 2, 3, -2, -3))
    elif item.type == AttributeProto.FLOAT:
        item.f = m.pick((0.0, 1.0, -1.0, -item.f, 0.5, 1e-30, 1e30, float("inf"), float("nan"), 2.0))
    elif item.type == AttributeProto.INTS and item.ints:
        place = m.pick(range(len(item.ints)))
        item.ints[place] = m.pick((-item.ints[place], item.ints[place] - 1, item.ints[place] + 1, 0, 1, 2, -1, 7))
    elif item.type == AttributeProto.STRING:
        item.s = m.pick(_STRINGS.get(item.name, (item.s.decode(),))).encode()


def _opset(m: Mutant) -> None:
    version = m.pick([number for number in _OPSETS if number != m.opset])
    if m.chance(0.4):
        try:
            m.model = version_converter.convert_version(m.model, version)
        except Exception as error:  # it raises errors without a common base
            raise UnfitError from error
        _bare(m.model)
        return
    for item in m.model.opset_import:
        if not item.domain:
            item.version = version


def _optional(m: Mutant) -> None:
    node = m.pick([node for node in m.graph.node if len(node.input) > 1])
    place = int(m.rng.integers(1, len(node.input)))
    if m.chance(0.5):
        del node.input[place:]
    else:
        node.input[place] = ""


def _fewer_outputs(m: Mutant) -> None:
    if len(m.graph.output) < 2:
        raise UnfitError
    item = m.pick(list(m.graph.output))
    m.graph.output.remove(item)
    for node in m.graph.node:
        if item.name in node.output and m.chance(0.7):
            node.output[list(node.output).index(item.name)] = ""


# ---- constants and inputs


def _to_constants(m: Mutant) -> None:
    names = list(m.feeds)
    for name in names if m.chance(0.3) else [m.pick(names)]:
        m.graph.input.remove(next(item for item in m.graph.input if item.name == name))
        m.graph.initializer.append(numpy_helper.from_array(m.feeds.pop(name), name))


def _to_inputs(m: Mutant) -> None:
    items = list(m.graph.initializer)
    for item in items if m.chance(0.3) else [m.pick(items)]:
        array = numpy_helper.to_array(item)
        m.feeds[item.name] = array
        if item.name not in {info.name for info in m.graph.input}:
            m.graph.input.append(info_of(item.name, array))
        m.graph.initializer.remove(item)


def _dynamic(m: Mutant) -> None:
    names: dict[int, str] = {}
    shared, share = m.chance(0.3), m.pick((0.3, 1.0, 1.0))
    for info in m.graph.input:
        for place, dim in enumerate(info.type.tensor_type.shape.dim):
            if m.chance(share) and dim.WhichOneof("value") == "dim_value":
                own = f"{info.name}_d{place}".replace("/", "_")
                dim.dim_param = names.setdefault(dim.dim_value, own) if shared else own


# ---- other operators around


def _maker(m: Mutant, name: str, array: Array, out: str) -> list[onnx.NodeProto]:
    """Return nodes from a tensor to another, of its shape where `array` is floating."""

    def number() -> Array:
        shape = m.pick(((), (), (1,), array.shape, array.shape[-1:]))
        drawn = m.rng.normal(size=shape) if array.dtype.kind in "fV" else m.rng.integers(1, 4, size=shape)
        values = np.asarray(drawn).astype(array.dtype)
        if array.dtype.kind == "f" and m.chance(0.25):
            m.is_extreme = True
            values = np.asarray(m.pick((0.0, -0.0, 1e30, 1e-30, np.inf, np.nan, 1.0, 1e8)), array.dtype)
        return values

    def node(operator: str, *inputs: str, **attrs: Any) -> list[onnx.NodeProto]:
        return [helper.make_node(operator, [name, *inputs], [out], **attrs)]

    if array.dtype.kind == "b":
        return m.pick((lambda: node("Not"), lambda: node("Cast", to=m.pick((1, 6, 7, 2)))))()
    moves = [
        lambda: node("Identity"), lambda: node("Flatten"), lambda: node("Transpose"),
        lambda: node("Concat", name, axis=-1), lambda: node("Concat", name, axis=0), lambda: node("ArgMax", axis=-1),
        lambda: node("Reshape", m.constant(f"{out}_c", np.array([-1], np.int64))),
        lambda: node("Cast", to=m.pick((1, 6, 7, 10, 11, 9, 3, 2))), lambda: node("Shape"),
    ]  # fmt: skip
    numeric = [
        *(lambda op=op: node(op, m.constant(f"{out}_c", number())) for op in
          ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mul", "Add", "Equal", "Less")),
        lambda: node("Clip", m.constant(f"{out}_c", number().reshape(-1)[:1].reshape(())) if array.size else ""),
        lambda: node("Abs"), lambda: node("Neg"), lambda: node("Add", name), lambda: node("Mul", name),
    ]  # fmt: skip
    floats = [
        *(lambda op=op: node(op) for op in (
            "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Reciprocal", "Floor", "LeakyRelu", "HardSigmoid", "Softmax",
            "Erf", "Log", "Softplus", "Elu", "Sign")),
        lambda: node("ReduceMean", keepdims=1) if m.opset < 18 else node("ReduceMax"),
    ]  # fmt: skip
    options = moves + numeric + (floats if array.dtype.kind in "fV" else [])
    return m.pick(options)()  # type: ignore[no-any-return]


def _after(m: Mutant) -> None:
    for _ in range(m.pick((1, 1, 2, 2, 3))):
        results = m.results()
        info = m.pick(list(m.graph.output))
        out = f"{info.name}_z"
        m.graph.node.extend(_maker(m, info.name, results[info.name], out))
        info.CopyFrom(onnx.ValueInfoProto(name=out))


def _before(m: Mutant) -> None:
    name = m.pick([name for name, array in m.feeds.items() if array.dtype.kind in "fiV"])
    array, inner = m.feeds[name], f"{name}_w"
    operators = ["Mul", "Add", "Identity", "Sub", "Div", "Neg", "Transpose"]
    operator = m.pick(operators + (["Relu", "Sigmoid"] if array.dtype.kind in "fV" else []))
    inputs, attrs = [inner], {}
    if operator in ("Mul", "Add", "Sub", "Div"):
        value = m.rng.normal(size=m.pick(((), array.shape[-1:], array.shape)))
        inputs.append(m.constant(f"{name}_k", np.asarray(np.round(value * 2) + 3).astype(array.dtype)))
    elif operator == "Transpose":
        order = [int(axis) for axis in m.rng.permutation(array.ndim)]
        m.feeds[name] = array.transpose(np.argsort(order)) if array.ndim else array
        attrs["perm"] = order
    info = next(item for item in m.graph.input if item.name == name)
    m.feeds[inner] = (
        np.ascontiguousarray(m.feeds.pop(name)).reshape(m.feeds.get(name, array).shape)
        if operator != "Transpose"
        else np.array(m.feeds.pop(name), order="C")
    )
    info.CopyFrom(info_of(inner, m.feeds[inner]))
    m.graph.node.insert(0, helper.make_node(operator, inputs, [name], **attrs))


def _joined(m: Mutant) -> None:
    """Combine a result of this node test with another node test."""
    results = m.results()
    info = m.pick(list(m.graph.output))
    key = results[info.name].dtype.name, results[info.name].shape
    other, name = m.pick(_input_index().get(key, ()))
    if {item.domain: item.version for item in other.model.opset_import}.items() - {
        item.domain: item.version for item in m.model.opset_import
    }.items():
        raise UnfitError
    second = onnx.compose.add_prefix(other.model, "s_")
    for node in second.graph.node:
        node.input[:] = [info.name if item == f"s_{name}" else item for item in node.input]
    taken = {item.name for item in m.graph.input}
    m.graph.node.extend(second.graph.node)
    m.graph.initializer.extend(second.graph.initializer)
    m.graph.input.extend(item for item in second.graph.input if item.name not in {f"s_{name}", *taken})
    m.feeds |= {f"s_{key}": value for key, value in other.inputs.items() if key != name}
    m.graph.output.remove(info)
    m.graph.output.extend(onnx.ValueInfoProto(name=item.name) for item in second.graph.output)
    m.names.append(other.name)


@cache
def _input_index() -> dict[tuple[str, tuple[int, ...]], list[tuple[Case, str]]]:
    found = defaultdict(list)
    for case in claimed():
        if len(case.model.graph.node) == 1:
            for name, array in case.inputs.items():
                found[array.dtype.name, array.shape].append((case, name))
    return found


# ---- functions, branches, loops


def _inner(m: Mutant, suffix: str, inputs: Sequence[onnx.ValueInfoProto] = ()) -> onnx.GraphProto:
    """Return the nodes as a graph that captures outer values; its results have a suffix."""
    nodes = [deepcopy(node) for node in m.graph.node]
    made = {name: f"{name}{suffix}" for node in nodes for name in node.output if name}
    _renamed(nodes, made)
    outputs = [onnx.ValueInfoProto(name=made.get(item.name, item.name)) for item in m.graph.output]
    if any(item.name not in made for item in m.graph.output):
        raise UnfitError
    return helper.make_graph(nodes, f"g{suffix}", list(inputs), outputs)


def _renamed(nodes: Any, made: dict[str, str]) -> None:
    for node in nodes:
        node.input[:] = [made.get(name, name) for name in node.input]
        node.output[:] = [made.get(name, name) for name in node.output]
        for item in node.attribute:
            if item.type == AttributeProto.GRAPH:
                _renamed(item.g.node, made)
                for info in item.g.output:
                    info.name = made.get(info.name, info.name)


def _typed(graph: onnx.GraphProto, arrays: Sequence[Array]) -> None:
    for info, array in zip(graph.output, arrays, strict=True):
        info.CopyFrom(helper.make_tensor_value_info(info.name, helper.np_dtype_to_tensor_dtype(array.dtype), None))


def _function(m: Mutant) -> None:
    nodes = list(m.graph.node)
    if m.model.functions:
        raise UnfitError
    arrays = m.arrays()
    inputs = [name for name in arrays if any(name in node.input for node in nodes)]
    outputs = [item.name for item in m.graph.output]
    domain = f"fuzz{m.pick(range(1 << 30))}"
    m.model.functions.append(helper.make_function(domain, "F", inputs, outputs, nodes, list(m.model.opset_import)))
    m.model.opset_import.append(helper.make_opsetid(domain, 1))
    m.model.ir_version = max(m.model.ir_version, 8)
    del m.graph.node[:]
    m.graph.node.append(helper.make_node("F", inputs, outputs, domain=domain))


def _branch(m: Mutant) -> None:
    results = list(m.results().values())
    condition = m.constant("if_c", np.array(m.chance(0.5)))
    one, two = _inner(m, "_t"), _inner(m, "_e")
    for graph in (one, two):
        _typed(graph, results)
    names = [item.name for item in m.graph.output]
    del m.graph.node[:]
    m.graph.node.append(helper.make_node("If", [condition], names, then_branch=one, else_branch=two))


def _loop(m: Mutant) -> None:
    results = list(m.results().values())
    trips = m.constant("loop_m", np.array(m.pick((0, 1, 1, 2, 3)), np.int64))
    body = _inner(m, "_b", [
        helper.make_tensor_value_info("loop_i", onnx.TensorProto.INT64, []),
        helper.make_tensor_value_info("loop_k", onnx.TensorProto.BOOL, []),
    ])  # fmt: skip
    _typed(body, results)
    carried = [name for name, array in m.feeds.items()
               if m.chance(0.6) and (array.shape, array.dtype) == (results[0].shape, results[0].dtype)]  # fmt: skip
    body.node.append(helper.make_node("Identity", ["loop_k"], ["loop_o"]))
    outputs = [item.name for item in m.graph.output]
    keep = helper.make_tensor_value_info("loop_o", onnx.TensorProto.BOOL, [])
    inputs = [trips, ""]
    scans = list(body.output)
    if carried:
        state = info_of("loop_s", m.feeds[carried[0]])
        _renamed(body.node, {carried[0]: "loop_s"})
        body.input.append(state)
        inputs.append(carried[0])
        extra = onnx.ValueInfoProto()
        extra.CopyFrom(scans[0])
        del body.output[:]
        body.output.extend([keep, extra, *scans[1:]])
    else:
        del body.output[:]
        body.output.extend([keep, *scans])
    del m.graph.node[:]
    m.graph.node.append(helper.make_node("Loop", inputs, outputs, body=body))


def _scan(m: Mutant) -> None:
    results = list(m.results().values())
    name = m.pick(list(m.feeds))
    array = m.feeds[name]
    body = _inner(m, "_b", [info_of("scan_x", array)])
    _renamed(body.node, {name: "scan_x"})
    for info, result in zip(body.output, results, strict=True):
        info.CopyFrom(info_of(info.name, result))
    m.put(name, np.stack([array] * m.pick((1, 2, 3))))
    outputs = [item.name for item in m.graph.output]
    attrs = {"scan_input_directions": [1]} if m.chance(0.3) else {}
    del m.graph.node[:]
    m.graph.node.append(helper.make_node("Scan", [name], outputs, body=body, num_scan_inputs=1, **attrs))


_STAGES: tuple[tuple[Callable[[Mutant], None], ...], ...] = (
    (_opset, _dtype, _dtype, extent, extent, rank, _attribute, _attribute, _attribute, _swapped, _optional,
     _fewer_outputs),
    (extremes, extremes, _joined, _after, _after, _before),
    (_to_constants, _to_inputs, _to_inputs),
    (_function, _branch, _loop, _scan),
    (_dynamic,),
)  # fmt: skip
_SHARES = (0.8, 0.45, 0.25, 0.2, 0.12)


def mutant(seed: int, number: int) -> Mutant:
    """Return the mutant of a node test that two numbers determine."""
    rng = np.random.default_rng((seed, number))
    sources = [case for case in claimed() if case.outputs]
    case = sources[int(rng.integers(len(sources)))]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    result = Mutant(rng, model, dict(case.inputs), [case.name])
    _bare(result.model)
    for steps, share in zip(_STAGES, _SHARES, strict=True):
        for _ in range(2):
            if result.chance(share * 0.7):
                _apply(result, steps)
    result.model = onnx.compose.add_prefix(result.model, f"m{number}_")
    result.feeds = {f"m{number}_{name}": array for name, array in result.feeds.items()}
    return result


def _apply(m: Mutant, steps: Sequence[Callable[[Mutant], None]]) -> None:
    """Apply the first of some steps that fits."""
    for place in m.rng.permutation(len(steps))[:4]:
        before = onnx.ModelProto()
        before.CopyFrom(m.model)
        feeds = dict(m.feeds)
        try:
            steps[place](m)
        except UnfitError:
            m.model, m.feeds = before, feeds
            continue
        m.names.append(steps[place].__name__.strip("_"))
        return


def declared(m: Mutant, results: Sequence[Array]) -> None:
    """Declare the outputs: by shape, by rank, or not at all."""
    way = m.pick(("shape", "shape", "rank", "none"))
    for info, array in zip(m.graph.output, results, strict=True):
        if way != "none":
            info.CopyFrom(info_of(info.name, array))
            if way == "rank" or "dynamic" in m.names:
                for place, dim in enumerate(info.type.tensor_type.shape.dim):
                    dim.dim_param = f"{info.name}_o{place}"


def operators(model: onnx.ModelProto) -> Iterator[str]:
    """Yield the operators of a model, including those of its functions and subgraphs."""
    waiting = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        yield node.op_type
        waiting += [inner for item in node.attribute for inner in item.g.node]
