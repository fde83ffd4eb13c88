"""Properties of a graph before import: input shapes, names, and the order of its nodes."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx

from mlfc.byoc.onnx_graphs import captured_names
from mlfc.errors import ModelError, Remedy
from mlfc.frontend.common import IMAGE_SIZES, SEQUENCE_SIZES, NoFittingShapesError, Values

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Sequence[int]]

SIZE_LIMIT = 1 << 32
_USUAL_BOUND = 8
# operators whose result has the shape of the first operand
_SAME_SHAPE = frozenset(("Abs", "Cast", "CastLike", "Exp", "Identity", "Log", "Neg", "Relu", "Sigmoid", "Sqrt", "Tanh"))


def declared_extents(item: onnx.ValueInfoProto | onnx.TypeProto.Tensor) -> list[int | str] | None:
    """Return the dimensions of a tensor, names (or "") for dynamic ones; None if the rank is dynamic.

    Paddle's exporter names every dynamic dimension ``?``, which is treated as unnamed.
    """
    tensor = item.type.tensor_type if isinstance(item, onnx.ValueInfoProto) else item
    if not tensor.HasField("shape"):
        return None
    found: list[int | str] = []
    for dimension in tensor.shape.dim:
        fixed = dimension.WhichOneof("value") == "dim_value" and dimension.dim_value >= 0
        name = str(dimension.dim_param)
        found.append(int(dimension.dim_value) if fixed else "" if name == "?" else name)
    return found


def declared_shapes(
    nodes: Sequence[onnx.NodeProto], items: Sequence[onnx.ValueInfoProto] = (), known: Mapping[str, Shape] | None = None
) -> dict[str, Shape]:
    """Return the static shapes that a graph declares, propagated backwards through operators that preserve the shape.

    Shapes with a dynamic dimension are left out.
    """
    found = dict(known or {})
    for item in items:
        dimensions = declared_extents(item) if item.type.WhichOneof("value") == "tensor_type" else None
        sizes = tuple(size for size in dimensions or () if isinstance(size, int))
        if dimensions is not None and len(sizes) == len(dimensions) and prod(sizes) <= SIZE_LIMIT:
            found[item.name] = sizes
    for node in reversed(nodes):
        if node.op_type in _SAME_SHAPE and node.input and len(node.output) == 1 and node.output[0] in found:
            found.setdefault(node.input[0], found[node.output[0]])
    return found


def named_sizes(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[Any]], values: Values
) -> dict[str, Any]:
    """Return the sizes of named dynamic dimensions, derived from user-provided shapes and values."""
    sizes: dict[str, Any] = {}
    for item in inputs:
        dimensions = declared_extents(item) or []
        of_value = np.shape(values[item.name]) if item.name in values else ()
        given = shapes.get(item.name, of_value if len(of_value) == len(dimensions) else ())
        for dimension, size in zip(dimensions, given, strict=False):
            if isinstance(dimension, str) and dimension and size is not None:
                sizes.setdefault(dimension, size)
    return sizes


def guessed_shapes(
    graph: onnx.GraphProto, shapes: Shapes, values: Values, weights: AbstractSet[str]
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield guesses for the shapes of dynamic inputs, the likeliest first: a batch of 1, and usual sizes."""
    inputs = [item for item in graph.input if item.name not in weights]
    symbols = named_sizes(inputs, shapes, values)
    inputs = [item for item in inputs if item.name not in values]
    still_open: dict[str, list[int | str]] = {}
    for item in inputs:
        dimensions = declared_extents(item)
        if dimensions is None:
            return
        if item.name not in shapes and any(symbols.get(size, "") == "" for size in dimensions if isinstance(size, str)):
            still_open[item.name] = dimensions
    is_image = any(len(dimensions) >= 4 for dimensions in still_open.values())
    for usual in IMAGE_SIZES if is_image else SEQUENCE_SIZES:
        # the batch of a recurrent state may be the middle dimension
        guess, inner = (
            {name: _guessed(dimensions, symbols, usual, is_inner) for name, dimensions in still_open.items()}
            for is_inner in (False, True)
        )
        yield guess
        if inner != guess and not is_image:
            yield inner


def _guessed(
    dimensions: Sequence[int | str], symbols: Mapping[str, int], usual: int, inner_batch: bool
) -> tuple[int, ...]:
    """Return a shape with 1 for batch dimensions and `usual` for other dynamic dimensions.

    With `inner_batch`, the unnamed middle dimension of three is a batch, too.
    """
    sizes = []
    for axis, size in enumerate(dimensions):
        if isinstance(size, str):
            is_batch = "batch" in size.lower() or (axis == 0 and len(dimensions) > 1)
            is_batch |= inner_batch and not size and axis == 1 and len(dimensions) == 3
            sizes.append(symbols.get(size) or (1 if is_batch else usual))
        else:
            sizes.append(size)
    return tuple(sizes)


def open_dimensions(
    graph: onnx.GraphProto,
    names: Sequence[str],
    guessed: Mapping[str, Sequence[int]],
    *,
    fits: bool,
    may_bound: bool = False,
) -> ModelError:
    """Return an error that names every input with dynamic dimensions and the options that fix them.

    `guessed` are likely shapes, if any; `fits` is True if the model can be imported with them. `may_bound` is True if
    bounds on the dimensions suffice.
    """
    described: list[str] = []
    options: list[str] = []
    remedies: list[Remedy] = []
    inputs = [item for item in graph.input if item.name in names]
    for item in inputs:
        dimensions = declared_extents(item)
        shown = ", ".join(str(size) if size != "" else "?" for size in dimensions or ())
        described.append(f"'{item.name}' ({'any rank' if dimensions is None else shown})")
        blank = ["N", "..."] if dimensions is None else [size if isinstance(size, int) else "N" for size in dimensions]
        sizes = blank if dimensions is None else guessed.get(item.name, blank)
        is_example = bool(guessed) and dimensions is not None
        remedies.append(Remedy("--shape", f"{item.name}={','.join(map(str, sizes))}", is_example=is_example))
        options.append(str(remedies[-1] if fits else Remedy("--shape", f"{item.name}={','.join(map(str, blank))}")))
    how = "for example" if fits else "with a number for each N"
    which = "inputs have" if len(inputs) > 1 else "input has"
    bounded = [_bounded_shape(item, guessed.get(item.name, ())) for item in inputs] if may_bound else []
    keep = f", or bounds, for example: {' '.join(bounded)}" if bounded and all(bounded) else ""
    kind = ModelError if fits or not guessed else NoFittingShapesError
    return kind(
        f"shapes must be static, but {len(inputs)} {which} dynamic dimensions: {', '.join(described)}",
        next_step=f"Give them, {how}: {' '.join(options)}{keep}",
        remedies=remedies,
    )


def _bounded_shape(item: onnx.ValueInfoProto, guessed: Sequence[int]) -> str:
    """Return the option that bounds the named dimensions of an input; an empty string if no dimension is named."""
    extents: list[str] = []
    for size, likely in zip(declared_extents(item) or (), guessed, strict=False):
        name = re.sub(r"\W+", "_", str(size), flags=re.ASCII)  # also bounds an expression, as its terms may vary
        extents.append(f"{name}:1..{max(likely, _USUAL_BOUND)}" if name.isidentifier() else str(likely))
    return str(Remedy("--shape", f"{item.name}={','.join(extents)}")) if any(":" in part for part in extents) else ""


@dataclass(frozen=True)
class NodeProto:
    """A node and its index in the file."""

    proto: onnx.NodeProto
    index: int

    @property
    def label(self) -> str:
        """Name used for the node in messages."""
        return self.proto.name or f"{self.proto.op_type} #{self.index}"


def check_names(graph: onnx.GraphProto, place: str) -> None:
    """Raise ModelError if two inputs, two initializers, or an input and a node's output share a name."""
    check_text(place, *(output.name for output in graph.output))
    lists = {"input": graph.input, "initializer": graph.initializer}
    for what, names in ((what, [item.name for item in items]) for what, items in lists.items()):
        check_text(place, *names)
        seen: set[str] = set()
        for name in names:
            if name in seen or not name:
                cause = f"two tensors among the {what}s are called '{name}'" if name else f"an {what} has no name"
                raise ModelError(cause, place=place)
            seen.add(name)


def check_text(place: str, *names: object) -> None:
    """Raise ModelError for a name that is not UTF-8, which protobuf returns as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"the name {name!r} is not UTF-8", place=place)


def sorted_nodes(nodes: Sequence[onnx.NodeProto], known: AbstractSet[str], place: str) -> list[NodeProto]:
    """Return the nodes in topological order, otherwise in file order.

    `known` are tensors that exist before these nodes run; `place` names the graph in messages. Raises ModelError if two
    nodes produce the same tensor, a node reads a tensor that is not produced, or the graph has a cycle.
    """
    items = [NodeProto(proto, index) for index, proto in enumerate(nodes)]
    maker: dict[str, int] = {}
    for item in items:
        for name in filter(None, item.proto.output):
            if name in maker or name in known:
                raise ModelError(f"the tensor '{name}' is computed twice, again by node '{item.label}'", place=place)
            maker[name] = item.index
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for item in items:
        for name in item.proto.input:
            if name and name not in maker and name not in known:
                raise ModelError(f"node '{item.label}' reads the tensor '{name}', which nothing produces", place=place)
        read = (*captured_names(item.proto), *item.proto.input)
        sorter.add(item.index, *(maker[name] for name in read if name in maker))
    with suppress(CycleError):  # nodes that are not on a cycle can still be sorted
        sorter.prepare()
    ready, order = list(sorter.get_ready()), []
    heapq.heapify(ready)
    while ready:
        order.append(items[heapq.heappop(ready)])
        sorter.done(order[-1].index)
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
    if len(order) != len(items):
        done = {item.index for item in order}
        stuck = [f"'{item.label}'" for item in items if item.index not in done]
        shown = ", ".join(stuck[:5]) + (", ..." if len(stuck) > 5 else "")
        raise ModelError(f"the graph has a cycle: {shown} wait for each other's results", place=place)
    return order


def needed_nodes(ordered: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """Return the nodes that `outputs` depend on, in order."""
    wanted = set(outputs)
    needed = []
    for item in reversed(ordered):
        if wanted.intersection(item.proto.output):
            needed.append(item)
            wanted.update(item.proto.input)
            wanted.update(captured_names(item.proto))
    return needed[::-1]
