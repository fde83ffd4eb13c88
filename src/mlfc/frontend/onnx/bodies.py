"""Functions, branches and other nested graphs, each imported where it is used, and the values that they see.

Stand-ins replace the values of refused nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from mlfc.byoc.onnx_graphs import captured_names
from mlfc.errors import InternalError, LimitError, MlfcError, ModelError, OptionError, UnsupportedError
from mlfc.frontend import control
from mlfc.frontend.common import Census, Problems
from mlfc.frontend.dynamic import NOTHING, Dynamic
from mlfc.frontend.onnx import table
from mlfc.frontend.onnx.containers import describe
from mlfc.frontend.onnx.draws import Runs
from mlfc.frontend.onnx.inputs import Shape, declared_extents, declared_shapes
from mlfc.frontend.onnx.loops import Loops
from mlfc.frontend.onnx.node import UnknownValueError
from mlfc.frontend.onnx.remedies import Advisor
from mlfc.frontend.onnx.tensors import dtype_name, tensor_value
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, Quantization, Span, TensorType, Tuple, Type, Var, has_trait
from mlfc.relay.op import Trait
from mlfc.relay.visitor import children


@dataclass
class Scope:
    """Values, types and opsets that one graph, branch or function body can see."""

    values: dict[str, Expr | None]  # expression of every tensor; None after a problem
    opsets: Mapping[str, int]  # opset version of every domain
    # attributes that a function's body refers to by name
    references: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    prefix: str = ""  # of node names, which distinguishes the calls of one function
    depth: int = 0
    declared: Mapping[str, onnx.ValueInfoProto] = field(default_factory=dict)  # types that the graph declares, by name
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # static shapes derived from them


def given_attributes(
    proto: onnx.NodeProto, references: Mapping[str, onnx.AttributeProto]
) -> dict[str, onnx.AttributeProto]:
    """Return the attributes of a node by name, with references to function attributes resolved or dropped."""
    found = {item.name: references.get(item.ref_attr_name) if item.ref_attr_name else item for item in proto.attribute}
    return {name: item for name, item in found.items() if item is not None}


def decoded_attributes(
    proto: onnx.NodeProto, references: Mapping[str, onnx.AttributeProto], place: str, folder: Path | None
) -> dict[str, Any]:
    """Return the values of the attributes of a node; external data are read from files in `folder`."""
    kinds = onnx.AttributeProto
    fields = {kinds.INT: "i", kinds.FLOAT: "f", kinds.STRING: "s", kinds.GRAPH: "g", kinds.TYPE_PROTO: "tp"}
    lists = {kinds.INTS: "ints", kinds.FLOATS: "floats", kinds.STRINGS: "strings"}
    found: dict[str, Any] = {}
    for name, item in given_attributes(proto, references).items():
        where = f"{place}, attribute '{name}'"
        if item.type == kinds.TENSOR:
            found[name] = tensor_value(item.t, where, folder)
        elif item.type in fields:
            found[name] = getattr(item, fields[item.type])
        elif item.type in lists:
            found[name] = tuple(getattr(item, lists[item.type]))
        else:
            raise UnsupportedError(f"attribute type {item.type} is not supported", place=where)
    return found


def renamed(result: Expr | None, tensor: str) -> Expr | None:
    """Return the result of a function or branch with the tensor name that its caller uses."""
    if result is None or isinstance(result, (Var, Constant, Tuple)) or result.span.tensor == tensor:
        return result
    return replace(result, span=Span(result.span.nodes, tensor))


class StandIns(set[Expr]):
    """Placeholder expressions of an import, and everything computed from them."""

    def of_inputs(
        self, graph: onnx.GraphProto, names: Sequence[str], shapes: Mapping[str, Sequence[int]]
    ) -> dict[str, Var]:
        """Return variables with guessed shapes for inputs with dynamic shapes."""
        found = {}
        for item in graph.input:
            if item.name in names and item.name in shapes:
                dtype = dtype_name(item.type.tensor_type.elem_type, f"input '{item.name}'")
                found[item.name] = Var(item.name, TensorType(tuple(shapes[item.name]), dtype))
        self.update(found.values())
        return found

    def feed(self, proto: onnx.NodeProto, values: Mapping[str, Expr | None]) -> bool:
        """Return whether a node depends on a stand-in."""
        return bool(self) and any(values.get(tensor) in self for tensor in (*proto.input, *captured_names(proto)))

    def pass_on(self, proto: onnx.NodeProto, values: Mapping[str, Expr | None]) -> None:
        """Mark the results of a node that depends on a stand-in as stand-ins."""
        if self.feed(proto, values):
            self.update(value for tensor in proto.output if (value := values.get(tensor)) is not None)

    def stand_for(
        self,
        proto: onnx.NodeProto,
        values: MutableMapping[str, Expr | None],
        declared: Mapping[str, onnx.ValueInfoProto],
        infer: Callable[[], Sequence[Expr | None]],
        likely: Sequence[Type],
    ) -> None:
        """Add a stand-in variable for each output without a value, if its type is known.

        The type is the declared one from `declared`, else the one that ONNX's inference yields in `infer`, else the one
        from `likely`.
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
                values[tensor] = stand_in = Var(tensor, kind)
                self.add(stand_in)


def _stated(value: onnx.ValueInfoProto | None) -> TensorType | None:
    """Return the declared type of a tensor if its shape is static."""
    extents = None if value is None else declared_extents(value)
    shape = tuple(extent for extent in extents or () if isinstance(extent, int))
    with suppress(MlfcError):
        if value is not None and extents is not None and len(shape) == len(extents):
            return TensorType(shape, dtype_name(value.type.tensor_type.elem_type, value.name))
    return None


_NESTING_LIMIT = 50
_TRY_LIMIT = 8  # each try is a complete import


class Chosen(Exception):  # noqa: N818  (not an error: the import restarts)
    """A branch was chosen; the import restarts with it."""


class Choices:
    """Choices between the branches of an If whose results differ in rank: the branches that fit the model.

    Exporters emit such an If where they could not determine a size: whether a dimension is 1, and so may be dropped.
    The nodes after it accept only one of the ranks. The branches are tried in turn, and the condition is checked at run
    time. A Squeeze without axes is such a node, too: it may or may not drop a dimension, depending on runtime values.
    """

    def __init__(self) -> None:
        self._taken: dict[str, bool] = {}
        self._tries = 0
        self.is_over = False  # no choice fits: these nodes are refused

    def taken(self, name: str) -> bool | None:
        """Return the required value of a node's condition; None if no branch is chosen."""
        return self._taken.get(name)

    def chosen(self, may_restart: bool, name: str) -> bool:
        """Return whether a node is imported in the first of two ways, which is tried first."""
        if name not in self._taken and may_restart and not self.is_over:
            self.choose(name)
        return self._taken.get(name, True)

    def choose(self, name: str) -> None:
        """Choose the first branch, or way, of a node; raise `Chosen`."""
        self._taken[name] = True
        raise Chosen

    def misfit(self, problem: Exception) -> None:
        """Raise `Chosen` with the next combination of branches if a problem may be caused by the current one."""
        is_other = isinstance(problem, (InternalError, LimitError, OptionError))
        if not self._taken or is_other or not isinstance(problem, MlfcError):
            return
        while self._taken:
            name, holds = self._taken.popitem()
            if holds:
                self._taken[name] = False
                break
        self._tries += 1
        if not self._taken or self._tries >= _TRY_LIMIT:
            self._taken.clear()
            self.is_over = True
        raise Chosen from problem


@dataclass(eq=False)
class Bodies(ABC):
    """State of an import, and the import of nested graphs."""

    model: onnx.ModelProto
    name: str
    folder: Path | None
    census: Census
    external: bool  # whether nodes that cannot be compiled may be kept for ONNX Runtime
    on_host: bool
    is_trial: bool = False
    dynamic: Dynamic | None = None
    choices: Choices = field(default_factory=Choices)
    may_restart: bool = True

    def __post_init__(self) -> None:
        self.problems = Problems()
        self.stand_ins = StandIns()
        self.advisor = Advisor(list(declared_shapes((), self.model.graph.output).values()))
        self.runs = Runs(self.model.graph)
        self.functions = {(table.normal_domain(f.domain), f.name, f.overload): f for f in self.model.functions}
        self.checks: list[Expr] = []
        self.noted: dict[Expr, Quantization] = {}  # quantization of integer tensors

    @abstractmethod
    def body(self, nodes: Sequence[onnx.NodeProto], scope: Scope, outputs: Sequence[str]) -> None:
        """Import the nodes that `outputs` depend on, and add their values to the scope."""

    def opsets(self, imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
        """Return the opset version of every domain."""
        opsets = {table.normal_domain(item.domain): item.version for item in imports}
        version = opsets.setdefault("", 1) if not imports else opsets.get("", table.NEWEST_OPSET)
        if not table.OLDEST_OPSET <= version <= table.NEWEST_OPSET:
            cause = f"opset {version} is not supported, only {table.OLDEST_OPSET} to {table.NEWEST_OPSET}"
            step = "Export the model with another opset, or convert it with onnx.version_converter"
            raise UnsupportedError(cause, place=self.name, next_step=step)
        return opsets

    def initializers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        """Add the weights of a graph to its scope."""
        for tensor in graph.initializer:
            scope.values[tensor.name] = None
            with self.problems.collecting():
                value = tensor_value(tensor, f"tensor '{tensor.name}'", self.folder)
                scope.values[tensor.name] = Constant(value, tensor.name)
        for sparse in graph.sparse_initializer:
            scope.values[sparse.values.name] = None
            with self.problems.collecting():
                cause, step = "sparse initializers are not supported", "Export the weights as dense tensors"
                raise UnsupportedError(cause, place=f"tensor '{sparse.values.name}'", next_step=step)

    def _function(self, function: onnx.FunctionProto, proto: onnx.NodeProto, scope: Scope, name: str) -> None:
        """Import the body of a model-local function inline at its call."""
        self._check_depth(scope, name)
        if len(proto.input) > len(function.input) or len(proto.output) > len(function.output):
            raise ModelError(
                f"function '{function.name}' takes {len(function.input)} inputs and gives "
                f"{len(function.output)} outputs, the node has {len(proto.input)} and {len(proto.output)}",
                place=f"node '{name}'",
            )
        inputs = [(formal, actual) for formal, actual in zip(function.input, proto.input, strict=False) if actual]
        outputs = [(formal, actual) for formal, actual in zip(function.output, proto.output, strict=False) if actual]
        values = {formal: scope.values[actual] for formal, actual in inputs}
        if any(value is None for value in values.values()):
            self.census.nodes += 1
            self.census.unchecked += 1
            return
        references = {item.name: item for item in function.attribute_proto} | given_attributes(proto, scope.references)
        opsets = {**scope.opsets, **self.opsets(function.opset_import)}
        known = {formal: scope.shapes[actual] for formal, actual in outputs if actual in scope.shapes}
        shapes = declared_shapes(function.node, function.value_info, known)
        inner = Scope(values, opsets, references, f"{name}/", scope.depth + 1, shapes=shapes)
        self.body(function.node, inner, [formal for formal, _ in outputs])
        scope.values.update((actual, renamed(inner.values[formal], actual)) for formal, actual in outputs)

    def _branch(self, proto: onnx.NodeProto, scope: Scope, name: str) -> None:
        """Import the branch of an If whose condition is known, else both: branches have no side effects."""
        self._check_depth(scope, name)
        condition = scope.values[proto.input[0]]
        if condition is None:
            self.census.unchecked += 1
            return
        results: Sequence[Expr | None]
        if isinstance(condition, Constant):
            results = self._branch_results(proto, "then_branch" if condition.data.any() else "else_branch", scope, name)
        elif self.external:
            raise _unknown("is left to ONNX Runtime", name, self.advisor.for_condition(condition))
        elif self.dynamic is not None:
            results = self._open_branch(self.dynamic, proto, condition, scope, name)
        else:
            known = len(self.problems)
            both = [self._branch_results(proto, each, scope, name) for each in ("then_branch", "else_branch")]
            advice = self.advisor.for_condition(condition)
            if len(self.problems) > known:
                raise _unknown("has a branch that is not supported; both are computed", name, advice)
            results = [
                None if one is None or other is None else _either(condition, one, other, name, advice)
                for one, other in zip(*both, strict=True)
            ]
        for result, actual in zip(results, proto.output, strict=True):
            if actual:
                scope.values[actual] = renamed(result, actual)

    def _open_branch(
        self, dynamic: Dynamic, proto: onnx.NodeProto, condition: Expr, scope: Scope, name: str
    ) -> Sequence[Expr | None]:
        """Import both branches as functions; if both are cheap, compute both and select."""
        _check_flag(condition, name)
        taken = self.choices.taken(name)
        if taken is not None:
            dynamic.require(condition, taken, f"condition of '{name}'")
            return self._branch_results(proto, "then_branch" if taken else "else_branch", scope, name)
        known = len(self.problems)
        bodies: list[control.Body] = []
        for which in ("then_branch", "else_branch"):
            with dynamic.function() as frame:
                results = self._branch_results(proto, which, scope, name)
            found = [result for result in results if result is not None]
            if len(found) < len(results) or len(self.problems) > known:
                return [None] * len(proto.output)
            bodies.append(control.Body(frame, found))
        outer = self._outer(proto, scope)
        kinds = [[result.type for result in body.results] for body in bodies]
        ranks = [[len(kind.shape) if isinstance(kind, TensorType) else None for kind in each] for each in kinds]
        have_other_ranks = any(a != b and None not in (a, b) for a, b in zip(*ranks, strict=True))
        if self.may_restart and not self.choices.is_over and not known and have_other_ranks:
            self.choices.choose(name)
        if kinds[0] == kinds[1] and control.is_cheap(bodies, outer):
            pairs = zip(*(body.results for body in bodies), strict=True)
            return [_either(condition, one, other, name, {}) for one, other in pairs]
        return control.branched(dynamic, condition, bodies, outer, name, list(proto.output))

    def _outer(self, proto: onnx.NodeProto, scope: Scope) -> set[Expr]:
        """Return the non-constant values that the graphs of a node capture."""
        values = (scope.values.get(tensor) for tensor in dict.fromkeys(captured_names(proto)))
        parts = (part for value in values if value is not None for part in control.flat(value))
        return {part for part in parts if not isinstance(part, Constant) and not has_trait(part, Trait.SHAPE)}

    def _branch_results(self, proto: onnx.NodeProto, which: str, scope: Scope, name: str) -> list[Expr | None]:
        """Import one branch of an If; return a result for each output of the node, None after a problem."""
        graphs = [item.g for item in proto.attribute if item.name == which and item.type == onnx.AttributeProto.GRAPH]
        if len(graphs) != 1 or len(graphs[0].output) < len(proto.output):
            raise ModelError(f"If needs a {which} with {len(proto.output)} outputs", place=f"node '{name}'")
        prefix = f"{name}/" if isinstance(scope.values[proto.input[0]], Constant) else f"{name}/{which}/"
        return self._results_of(graphs[0], scope, dict(scope.values), prefix)[: len(proto.output)]

    def _results_of(
        self, graph: onnx.GraphProto, scope: Scope, values: dict[str, Expr | None], prefix: str
    ) -> list[Expr | None]:
        """Import a nested graph; return its results, None after a problem."""
        inner = replace(scope, values=values, prefix=prefix, depth=scope.depth + 1, declared={}, shapes={})
        self.initializers(graph, inner)
        names = [output.name for output in graph.output]
        self.body(graph.node, inner, names)
        return [inner.values[name] for name in names]

    def _graph(self, graph: onnx.GraphProto, arguments: Sequence[Expr], scope: Scope, name: str) -> list[Expr]:
        """Import a graph that a node applies to `arguments`; return its results."""
        self._check_depth(scope, name)
        if len(graph.input) != len(arguments):
            cause = f"the graph '{graph.name}' takes {len(graph.input)} inputs, the node gives it {len(arguments)}"
            raise ModelError(cause, place=f"node '{name}'")
        values = {**scope.values, **{item.name: value for item, value in zip(graph.input, arguments, strict=True)}}
        results = self._results_of(graph, scope, values, f"{name}/")
        found = [result for result in results if result is not None]
        if len(found) < len(results):
            raise ModelError(f"the graph '{graph.name}' has no result", place=f"node '{name}'")
        return found

    def _repeated(self, proto: onnx.NodeProto, scope: Scope, name: str) -> None:
        """Import a Loop, Scan or SequenceMap; a loop with few, known iterations is unrolled."""
        self._check_depth(scope, name)
        values, graph = [scope.values[tensor] if tensor else None for tensor in proto.input], graph_of(proto, name)
        if any(tensor and value is None for tensor, value in zip(proto.input, values, strict=True)):
            self.census.unchecked += 1  # the problem that left the input without a value is already recorded
            return

        def turn(arguments: Sequence[Expr]) -> list[Expr]:
            known = len(self.problems)
            try:
                return self._graph(graph, arguments, scope, name)
            except ModelError:  # report the problem in the graph instead
                if len(self.problems) == known:
                    raise
                raise self.problems.taken_back(known) from None

        loops = Loops(self.dynamic, proto, values, graph, name, self._outer(proto, scope), turn)
        results = {"Loop": loops.loop, "Scan": loops.scan, "SequenceMap": loops.map}[proto.op_type]()
        for result, tensor in zip(results, proto.output, strict=False):
            named = renamed(result, tensor)
            if tensor and named is not None:
                scope.values[tensor] = named
                if self.dynamic is not None:
                    self.dynamic.moved({result: named})

    def _check_depth(self, scope: Scope, name: str) -> None:
        if scope.depth >= _NESTING_LIMIT:
            cause = f"functions and branches are nested more than {_NESTING_LIMIT} deep, or call themselves"
            raise ModelError(cause, place=f"node '{name}'")


def _check_flag(condition: Expr, name: str) -> None:
    kind = condition.type
    if not isinstance(kind, TensorType) or kind.dtype != "bool" or kind.size != 1:
        raise ModelError(f"the condition of If is one bool, not {kind}", place=f"node '{name}'")


def _either(condition: Expr, taken: Expr, other: Expr, name: str, advice: Mapping[str, Any]) -> Expr:
    """Return the first of two results, or of two sequences of equal length, if a condition is true, else the second.

    Branches have no side effects, so this implements If when both branches return tensors of the same shape. `advice`
    has the next step for a condition that is not constant. Raises UnknownValueError if the results have different
    types.
    """
    if isinstance(taken, Tuple) or isinstance(other, Tuple):
        if taken is other:
            return taken
        both = (taken, other)
        lengths = [len(item.fields) if isinstance(item, Tuple) and item is not NOTHING else -1 for item in both]
        if lengths[0] == lengths[1] >= 0:
            pairs = zip(children(taken), children(other), strict=True)
            return Tuple(tuple(_either(condition, one, two, name, advice) for one, two in pairs))
        shown = [describe(item) if isinstance(item, Tuple) else str(item.type) for item in both]
        raise _unknown(f"cannot return {shown[0]} or {shown[1]}", name, advice)
    _check_flag(condition, name)
    kinds = [ir.tensor_type(item) for item in (condition, taken, other)]
    if kinds[1] != kinds[2]:
        raise _unknown(f"cannot return {kinds[1]} or {kinds[2]}", name, advice)
    span = Span((name,))
    flag = ir.call("reshape", [condition], {"newshape": ()}, span=span) if kinds[0].shape else condition
    return ir.call("where", [flag, taken, other], span=span)


def _unknown(cause: str, name: str, advice: Mapping[str, Any]) -> UnknownValueError:
    """Return the error of an If that requires a constant condition; `cause` completes the sentence."""
    return UnknownValueError(
        f"If with a condition that is not constant {cause}", index=0, place=f"node '{name}'", **advice
    )


def graph_of(proto: onnx.NodeProto, name: str) -> onnx.GraphProto:
    """Return the graph in a node's `body` attribute."""
    graphs = [item.g for item in proto.attribute if item.name == "body" and item.type == onnx.AttributeProto.GRAPH]
    if len(graphs) != 1:
        raise ModelError(f"{proto.op_type} needs a graph 'body'", place=f"node '{name}'")
    return graphs[0]
