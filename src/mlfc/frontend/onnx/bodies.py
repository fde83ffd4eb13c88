"""Functions, branches and other graphs inside of a model, each imported in the place where it is used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx

from mlfc.byoc.onnx_graphs import captured_names
from mlfc.errors import ModelError
from mlfc.frontend import control
from mlfc.frontend.common import Census, Problems
from mlfc.frontend.dynamic import Dynamic
from mlfc.frontend.onnx import branches
from mlfc.frontend.onnx import dynamic_loops as loops
from mlfc.frontend.onnx.choices import Choices
from mlfc.frontend.onnx.inputs import declared_shapes
from mlfc.frontend.onnx.remedies import Advisor
from mlfc.frontend.onnx.scope import Scope, given_attributes, renamed
from mlfc.relay.ir import Constant, Expr, TensorType, Tuple, Type, has_trait
from mlfc.relay.op import Trait

NESTING_LIMIT = 50


class Bodies(ABC):
    """The part of an import that deals with graphs inside of others."""

    external: bool
    census: Census
    problems: Problems
    advisor: Advisor
    dynamic: Dynamic | None
    choices: Choices
    may_restart: bool

    @abstractmethod
    def body(self, nodes: Sequence[onnx.NodeProto], scope: Scope, outputs: Sequence[str]) -> None:
        """Import the nodes that `outputs` need; their values are in the scope afterwards."""

    @abstractmethod
    def initializers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        """Put the weights of a graph into its scope."""

    @abstractmethod
    def opsets(self, imports: Sequence[onnx.OperatorSetIdProto]) -> Mapping[str, int]:
        """Return the version of every domain."""

    def _function(self, function: onnx.FunctionProto, proto: onnx.NodeProto, scope: Scope, name: str) -> None:
        """Import the body of a model-local function in the place of its call."""
        self._check_depth(scope, name)
        if len(proto.input) > len(function.input) or len(proto.output) > len(function.output):
            raise ModelError(
                f"function '{function.name}' takes {len(function.input)} inputs and gives "
                f"{len(function.output)} outputs, the node has {len(proto.input)} and {len(proto.output)}",
                place=f"node '{name}'",
            )
        values = {
            formal: scope.values[actual] for formal, actual in zip(function.input, proto.input, strict=False) if actual
        }
        if any(value is None for value in values.values()):
            self.census.nodes += 1
            self.census.unchecked += 1
            return
        references = {item.name: item for item in function.attribute_proto} | given_attributes(proto, scope.references)
        opsets = {**scope.opsets, **self.opsets(function.opset_import)}
        known = {
            formal: scope.shapes[actual]
            for formal, actual in zip(function.output, proto.output, strict=False)
            if actual in scope.shapes
        }
        shapes = declared_shapes(function.node, function.value_info, known)
        inner = Scope(values, opsets, references, f"{name}/", scope.depth + 1, shapes=shapes)
        wanted = [formal for formal, actual in zip(function.output, proto.output, strict=False) if actual]
        self.body(function.node, inner, wanted)
        for formal, actual in zip(function.output, proto.output, strict=False):
            if actual:
                scope.values[actual] = renamed(inner.values[formal], actual)

    def _branch(self, proto: onnx.NodeProto, scope: Scope, name: str) -> None:
        """Import the branch of an If whose condition is known, else both: nothing in them has an effect."""
        self._check_depth(scope, name)
        condition = scope.values[proto.input[0]]
        if condition is None:
            self.census.unchecked += 1
            return
        results: Sequence[Expr | None]
        if isinstance(condition, Constant):
            results = self._branch_results(proto, "then_branch" if condition.data.any() else "else_branch", scope, name)
        elif self.external:
            raise branches.unknown("is left to ONNX Runtime", name, self.advisor.for_condition(condition))
        else:
            results = self._either_branch(proto, condition, scope, name)
        for result, actual in zip(results, proto.output, strict=True):
            if actual:
                scope.values[actual] = renamed(result, actual)

    def _either_branch(self, proto: onnx.NodeProto, condition: Expr, scope: Scope, name: str) -> Sequence[Expr | None]:
        if self.dynamic is not None:
            return self._open_branch(self.dynamic, proto, condition, scope, name)
        known = len(self.problems)
        both = [self._branch_results(proto, each, scope, name) for each in ("then_branch", "else_branch")]
        advice = self.advisor.for_condition(condition)
        if len(self.problems) > known:
            raise branches.unknown("has a branch that is not supported; both are computed", name, advice)
        return [
            None if one is None or other is None else branches.either(condition, one, other, name, advice)
            for one, other in zip(*both, strict=True)
        ]

    def _open_branch(
        self, dynamic: Dynamic, proto: onnx.NodeProto, condition: Expr, scope: Scope, name: str
    ) -> Sequence[Expr | None]:
        """Import both branches as functions; where both are cheap, they are computed without asking."""
        if isinstance(condition, Tuple) or not _is_flag(condition):
            raise ModelError(f"the condition of If is one bool, not {condition.type}", place=f"node '{name}'")
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
        if self.may_restart and not self.choices.is_over and not known and any(map(_have_other_ranks, *kinds)):
            self.choices.choose(name)
        if kinds[0] == kinds[1] and control.is_cheap(bodies, outer):
            pairs = zip(*(body.results for body in bodies), strict=True)
            return [branches.either(condition, one, other, name, {}) for one, other in pairs]
        return control.branched(dynamic, condition, bodies, outer, name, list(proto.output))

    def _outer(self, proto: onnx.NodeProto, scope: Scope) -> set[Expr]:
        """Return what the graphs of a node read from around them and cannot have themselves."""
        values = (scope.values.get(tensor) for tensor in dict.fromkeys(captured_names(proto)))
        parts = (part for value in values if value is not None for part in control.flat(value))
        return {part for part in parts if not isinstance(part, Constant) and not has_trait(part, Trait.SHAPE)}

    def _branch_results(self, proto: onnx.NodeProto, which: str, scope: Scope, name: str) -> list[Expr | None]:
        """Import one branch of an If; return a result for each output of the node, None where there was a problem."""
        graphs = [item.g for item in proto.attribute if item.name == which and item.type == onnx.AttributeProto.GRAPH]
        if len(graphs) != 1 or len(graphs[0].output) < len(proto.output):
            raise ModelError(f"If needs a {which} with {len(proto.output)} outputs", place=f"node '{name}'")
        graph = graphs[0]
        prefix = f"{name}/" if isinstance(scope.values[proto.input[0]], Constant) else f"{name}/{which}/"
        inner = replace(scope, values=dict(scope.values), prefix=prefix, depth=scope.depth + 1, declared={}, shapes={})
        self.initializers(graph, inner)
        names = [output.name for output in graph.output]
        self.body(graph.node, inner, names)
        return [inner.values[result] for result, _ in zip(names, proto.output, strict=False)]

    def _graph(self, graph: onnx.GraphProto, arguments: Sequence[Expr], scope: Scope, name: str) -> list[Expr]:
        """Import a graph that a node applies to `arguments`; return its results."""
        self._check_depth(scope, name)
        if len(graph.input) != len(arguments):
            raise ModelError(
                f"the graph '{graph.name}' takes {len(graph.input)} inputs, the node gives it {len(arguments)}",
                place=f"node '{name}'",
            )
        values = {**scope.values, **{item.name: value for item, value in zip(graph.input, arguments, strict=True)}}
        inner = replace(scope, values=values, prefix=f"{name}/", depth=scope.depth + 1, declared={}, shapes={})
        self.initializers(graph, inner)
        self.body(graph.node, inner, [output.name for output in graph.output])
        results = [inner.values[output.name] for output in graph.output]
        found = [result for result in results if result is not None]
        if len(found) < len(results):
            raise ModelError(f"the graph '{graph.name}' gives no result", place=f"node '{name}'")
        return found

    # Loops

    def _values(self, proto: onnx.NodeProto, scope: Scope) -> list[Expr | None] | None:
        """Return the inputs of a node; None where one has no value because of a problem."""
        values = [scope.values[tensor] if tensor else None for tensor in proto.input]
        if any(tensor and value is None for tensor, value in zip(proto.input, values, strict=True)):
            self.census.unchecked += 1
            return None
        return values

    def _turn(self, graph: onnx.GraphProto, arguments: Sequence[Expr], scope: Scope, name: str) -> list[Expr]:
        """Import a graph for one turn of a loop; what is wrong with it is raised."""
        known = len(self.problems)
        try:
            return self._graph(graph, arguments, scope, name)
        except ModelError:
            if len(self.problems) == known:
                raise
            raise self.problems.taken_back(known) from None

    def _repeated(self, proto: onnx.NodeProto, scope: Scope, name: str) -> None:
        """Import a Loop, unrolled where its turns are few and known, a Scan or a SequenceMap."""
        self._check_depth(scope, name)
        values, graph = self._values(proto, scope), graph_of(proto, "body", name)
        if values is None:
            return
        found = loops.Loops(self.dynamic, proto, values, graph, name, self._outer(proto, scope))
        write = {"Loop": found.loop, "Scan": found.scan, "SequenceMap": found.map}[proto.op_type]
        self._give(proto, write(lambda graph, given: self._turn(graph, given, scope, name)), scope)

    def _give(self, proto: onnx.NodeProto, results: Sequence[Expr], scope: Scope) -> None:
        for result, tensor in zip(results, proto.output, strict=False):
            if tensor:
                named = renamed(result, tensor)
                assert named is not None
                scope.values[tensor] = named
                if self.dynamic is not None:
                    self.dynamic.moved({result: named})

    def _check_depth(self, scope: Scope, name: str) -> None:
        if scope.depth >= NESTING_LIMIT:
            raise ModelError(
                f"functions and branches are nested more than {NESTING_LIMIT} deep, or call themselves",
                place=f"node '{name}'",
            )


def _is_flag(condition: Expr) -> bool:
    kind = condition.type
    return isinstance(kind, TensorType) and kind.dtype == "bool" and kind.size == 1


def _have_other_ranks(one: Type, other: Type) -> bool:
    both = isinstance(one, TensorType) and isinstance(other, TensorType)
    return both and len(one.shape) != len(other.shape)  # type: ignore[union-attr]  # tensors


def graph_of(proto: onnx.NodeProto, which: str, name: str) -> onnx.GraphProto:
    """Return the graph that is an attribute of a node."""
    graphs = [item.g for item in proto.attribute if item.name == which and item.type == onnx.AttributeProto.GRAPH]
    if len(graphs) != 1:
        raise ModelError(f"{proto.op_type} needs a graph '{which}'", place=f"node '{name}'")
    return graphs[0]
