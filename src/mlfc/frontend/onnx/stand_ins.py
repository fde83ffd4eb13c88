"""Variables in the place of tensors that have no value because of a problem, so that what reads them is checked too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import onnx

from mlfc.byoc.onnx_graphs import captured_names
from mlfc.errors import MlfcError
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay.ir import Expr, TensorType, Type, Var


@dataclass
class StandIns:
    """The stand-ins of an import, and what was computed from them."""

    _known: dict[int, Expr] = field(default_factory=dict)  # keeping an expression keeps its id its own

    def __bool__(self) -> bool:
        return bool(self._known)

    def copy(self) -> StandIns:
        """Return the same stand-ins, to which others may be added."""
        found = StandIns()
        found._known = dict(self._known)
        return found

    def replace(self, changed: Callable[[Expr], Expr]) -> None:
        """Note that other expressions take the place of these."""
        for expr in list(self._known.values()):
            self._keep(changed(expr))

    def of_inputs(
        self, graph: onnx.GraphProto, names: Sequence[str], shapes: Mapping[str, Sequence[int]]
    ) -> dict[str, Var]:
        """Return variables of a guessed shape for inputs that leave theirs open."""
        found = {}
        for item in graph.input:
            if item.name in names and item.name in shapes:
                dtype = dtype_name(item.type.tensor_type.elem_type, f"input '{item.name}'")
                found[item.name] = Var(item.name, TensorType(tuple(shapes[item.name]), dtype))
                self._keep(found[item.name])
        return found

    def feed(self, proto: onnx.NodeProto, values: Mapping[str, Expr | None]) -> bool:
        """Tell whether a node reads what was computed from a stand-in."""
        if not self._known:
            return False
        read = (values.get(tensor) for tensor in (*proto.input, *captured_names(proto)))
        return any(id(value) in self._known for value in read)

    def pass_on(self, proto: onnx.NodeProto, values: Mapping[str, Expr | None]) -> None:
        """Note that what a node computes from a stand-in is no more certain than that."""
        if self.feed(proto, values):
            for tensor in proto.output:
                self._keep(values.get(tensor))

    def add(
        self,
        proto: onnx.NodeProto,
        values: MutableMapping[str, Expr | None],
        declared: Mapping[str, onnx.ValueInfoProto],
        infer: Callable[[], Sequence[Expr | None]],
        likely: Sequence[Type],
    ) -> None:
        """Give each output of a node without a value a variable of the type that the model states, or ONNX infers.

        `declared` has what the model states by name; `infer` returns expressions of the types that ONNX infers; where
        neither says anything, there are the `likely` types of the outputs.
        """
        missing = [tensor for tensor in proto.output if tensor and values.get(tensor) is None]
        inferred: Sequence[Expr | None] = ()
        if any(_stated(declared.get(tensor)) is None for tensor in missing):
            with suppress(MlfcError):
                inferred = infer()
        kinds = dict(zip(proto.output, likely, strict=False))
        kinds |= {tensor: expr.type for tensor, expr in zip(proto.output, inferred, strict=False) if expr is not None}
        for tensor in missing:
            kind = _stated(declared.get(tensor)) or kinds.get(tensor)
            if isinstance(kind, TensorType):
                values[tensor] = Var(tensor, kind)
                self._keep(values[tensor])

    def _keep(self, expr: Expr | None) -> None:
        if expr is not None:
            self._known[id(expr)] = expr


def _stated(value: onnx.ValueInfoProto | None) -> TensorType | None:
    """Return the type that a model states of a tensor, if all its extents are numbers."""
    if value is None or not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return None
    try:
        dtype = dtype_name(value.type.tensor_type.elem_type, value.name)
    except MlfcError:
        return None
    return TensorType(tuple(dim.dim_value for dim in dims), dtype)
