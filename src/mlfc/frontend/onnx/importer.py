"""ONNX model in, Relay module out: nodes in order, each by its importer, every problem collected."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from mlfc.byoc.onnx_graphs import captured_names, inner_graphs
from mlfc.errors import InternalError, LimitError, MlfcError, ModelError, UnsupportedError
from mlfc.frontend.common import Census, Params, Problems, Values, finish, numbered
from mlfc.frontend.dynamic import Constrained, Dynamic
from mlfc.frontend.onnx import older, table
from mlfc.frontend.onnx.bodies import graph_of
from mlfc.frontend.onnx.choices import Choices, Chosen
from mlfc.frontend.onnx.constraining import Constraining
from mlfc.frontend.onnx.constraints import (
    fitting_length,
)
from mlfc.frontend.onnx.container_io import container_of, input_value, output_parts, with_ranks
from mlfc.frontend.onnx.containers import check_tensors, describe, tensors_in
from mlfc.frontend.onnx.conversion import MALFORMED, converted
from mlfc.frontend.onnx.dynamic_loops import is_long_scan
from mlfc.frontend.onnx.external import external_calls
from mlfc.frontend.onnx.inputs import (
    NodeProto,
    Shapes,
    check_names,
    check_text,
    declared_extents,
    declared_shapes,
    guessed_shapes,
    needed_nodes,
    open_dimensions,
    sorted_nodes,
)
from mlfc.frontend.onnx.naming import named_results
from mlfc.frontend.onnx.node import Node, UnknownValueError
from mlfc.frontend.onnx.remedies import Advisor
from mlfc.frontend.onnx.runs import Runs, requiring
from mlfc.frontend.onnx.runtime_broadcast import checked_at_run
from mlfc.frontend.onnx.schema import check_schema
from mlfc.frontend.onnx.scope import Scope, check_captured, decoded_attributes, defining
from mlfc.frontend.onnx.stand_ins import StandIns
from mlfc.frontend.onnx.tensors import tensor_value
from mlfc.frontend.onnx.variables import OpenShapesError, input_variables
from mlfc.frontend.python_trace import located
from mlfc.ops.rules import UnequalDimsError
from mlfc.relay.ir import Constant, Expr, IRModule, ListType, Quantization, TensorType, Tuple, Var
from mlfc.support.containers import Container
from mlfc.support.cost import apart, give_nodes, spend, undone

_RESTART_LIMIT = 128


def import_onnx(
    data: bytes,
    name: str,
    *,
    shapes: Shapes | None = None,
    values: Values | None = None,
    folder: Path | None = None,
    external: bool = False,
    on_host: bool = True,
    census: Census | None = None,
    dynamic: bool = False,
) -> tuple[IRModule, Params]:
    """Import a serialized ONNX model; return the module, and the weights by tensor name.

    `name` is what messages and the module's source facts call the model; `shapes` are of inputs whose dimensions the
    model leaves open; inputs with `values` become constants. External data are read from files in `folder` and nowhere
    else. With `external`, nodes that cannot be compiled stay ONNX nodes for ONNX Runtime, if they can. `on_host` says
    whether ONNX Runtime may exist where the model is to run, so that messages may offer it. `census` counts the nodes.
    With `dynamic`, dimensions that the model leaves open, and shapes that follow from data, are left to the run; so are
    branches and loops.
    Raises ModelError, UnsupportedError, or ProblemsError with all that is wrong.
    """
    model = _parse(data, name)
    give_nodes(_tensor_count(model))
    source = {"format": "onnx", "sha256": hashlib.sha256(data).hexdigest(), "name": name}
    census = census or Census()

    def imported(shapes: Shapes, census: Census, mixes: bool = True) -> tuple[IRModule, Params]:
        start = partial(_Importer, model, name, folder, external=external, on_host=on_host, census=census)
        dynamics = partial(Dynamic, mixes=mixes) if dynamic else None
        return _restarted(start, lambda importer: importer.run(shapes, values or {}, source), dynamics)

    def can_import(shapes: Shapes, mixes: bool) -> bool:
        try:
            with apart():
                imported(shapes, Census(), mixes)
        except (MlfcError, *MALFORMED):
            return False
        return True

    try:
        shapes = with_ranks(model.graph, shapes or {}, can_import) if dynamic else shapes or {}
        return imported(shapes, census)
    except MALFORMED as error:
        raise ModelError(f"the model is malformed: {error}", place=name) from error


def _restarted(
    start: Callable[..., _Importer],
    run: Callable[[_Importer], tuple[IRModule, Params]],
    dynamics: Callable[..., Dynamic] | None,
) -> tuple[IRModule, Params]:
    """Run an import, and start it again each time that a node requires other branches."""
    choices, restarts = Choices(), 0
    while True:
        may_restart = restarts < _RESTART_LIMIT
        dynamic = dynamics and dynamics(partial(choices.chosen, may_restart))
        importer = start(dynamic=dynamic, choices=choices, may_restart=may_restart)
        restarts += 1
        try:
            with undone(Chosen):
                return run(importer)
        except Chosen:
            importer.census.nodes = importer.census.refused = importer.census.unchecked = 0


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    step = "Use a .tflite, .onnx or Relay text file, or export the model again"
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ModelError("the file is not an ONNX model, or it is damaged", place=name, next_step=step) from error
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError("the file holds no ONNX graph with outputs", place=name, next_step=step)
    return model


def _tensor_count(model: onnx.ModelProto) -> int:
    """Return how many tensors the nodes of a file name, each function and branch taken once."""
    count = 0
    waiting = [model.graph.node, *(function.node for function in model.functions)]
    while waiting:
        for node in waiting.pop():
            count += len(node.input) + len(node.output)
            waiting.extend(graph.node for graph in inner_graphs(node))
    return count


class _Importer(Constraining):
    """State of one import."""

    def __init__(
        self,
        model: onnx.ModelProto,
        name: str,
        folder: Path | None,
        *,
        external: bool,
        on_host: bool,
        census: Census,
        is_trial: bool = False,
        dynamic: Dynamic | None = None,
        choices: Choices | None = None,
        may_restart: bool = True,
    ) -> None:
        self.dynamic = dynamic
        self.choices = choices or Choices()
        self.may_restart = may_restart
        self.external = external
        self.on_host = on_host
        self.census = census
        self.model = model
        self.name = name
        self.folder = folder
        self.is_trial = is_trial
        self.problems = Problems()
        self.stand_ins = StandIns()
        self.advisor = Advisor(list(declared_shapes((), model.graph.output).values()))
        self.functions = {(table.normal_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self.runs = Runs(model.graph)
        self.checks: list[Expr] = []
        self.noted: dict[int, tuple[Expr, Quantization]] = {}

    def run(self, shapes: Shapes, values: Values, source: Mapping[str, str]) -> tuple[IRModule, Params]:
        graph = self.model.graph
        opsets = self.opsets(self.model.opset_import)
        check_names(graph, self.name)
        declared = {value.name: value for value in (*graph.value_info, *graph.output)}
        scope = Scope({}, opsets, declared=declared, shapes=declared_shapes(graph.node, list(declared.values())))
        self.initializers(graph, scope)
        given = self._inputs(shapes, values, scope)
        containers = self._containers(given, scope)
        for value in graph.input:
            scope.values.setdefault(value.name, given.get(value.name))
        self.scope = scope
        self.set_inputs({name: expr for name, expr in given.items() if isinstance(expr, Var)})
        if self.dynamic is not None and self.may_restart:
            bounded = self.dynamic.user_bounds
            self.dynamic.may_be_empty = {
                each for each in self.input_symbols if not each.low and each.name not in bounded
            }
        frozen = {name: expr.data for name, expr in given.items() if isinstance(expr, Constant)}
        outputs = [output.name for output in graph.output]
        self.body(graph.node, scope, outputs)
        self.problems.raise_if_any(place=self.name)
        self._check_ranks([scope.values[output] for output in outputs])
        self.fit_windows(outputs, scope)
        inputs = self.inputs
        results, titles = self._results(scope, outputs, containers)
        quantization = self._quantization(
            [*zip(inputs, inputs.values(), strict=True), *zip(titles, results, strict=True)]
        )
        results = requiring(results, self.checks)
        runs = self.runs.counted(results)
        variables, results, titles = (
            [*inputs.values(), *runs.inputs],
            [*results, *runs.outputs],
            [*titles, *runs.titles],
        )
        if self.dynamic is None:
            return finish(variables, results, titles, quantization, source, frozen, runs.states)
        needs = self.dynamic.needs(self.dynamic.frame, variables, results, frozenset())
        module, params = finish(
            variables, results, titles, quantization, source, frozen, runs.states, needs.defines, self.dynamic.functions
        )
        return replace(module, containers=tuple(containers)), params

    def _containers(self, given: Mapping[str, Var | Constant], scope: Scope) -> list[Container]:
        """Put the inputs that are sequences or optionals into the scope; return what they are."""
        found: list[Container] = []
        for item in self.model.graph.input if self.dynamic is not None else ():
            container = container_of(item) if item.name not in scope.values else None
            if container is None:
                continue
            found.append(container)
            parts = [given[name] for name in container.parts if name in given]
            complete = len(parts) == len(container.parts)
            assert self.dynamic is not None
            scope.values[item.name] = input_value(container, parts, self.dynamic) if complete else None
        return found

    def _results(
        self, scope: Scope, outputs: Sequence[str], containers: list[Container]
    ) -> tuple[list[Expr], list[str]]:
        """Return the results of the model with their names; add those that are no tensors to `containers`."""
        results: list[Expr] = []
        titles: list[str] = []
        for item, title in zip(self.model.graph.output, numbered(outputs), strict=True):
            value = scope.values[item.name]
            is_tensor = value is None or (isinstance(value.type, TensorType) and container_of(item) is None)
            if self.dynamic is None or value is None or is_tensor:
                results.append(self._result(scope, item.name))
                titles.append(title)
                continue
            for container, name, part in output_parts(value, item, title, self.dynamic):
                containers += [container] if container not in containers else []
                results.append(part)
                titles.append(name)
        taken = [name for name, count in Counter(titles).items() if count > 1]
        if taken:
            raise UnsupportedError(
                f"the part '{taken[0]}' of a sequence has the name of another output",
                place=self.name,
                next_step="Rename the output",
            )
        return results, titles

    def _inputs(self, shapes: Shapes, values: Values, scope: Scope) -> dict[str, Var | Constant]:
        graph, weights = self.model.graph, set(scope.values)
        try:
            return input_variables(graph, shapes, values, weights, self.problems, self.dynamic)
        except OpenShapesError as error:
            if self.is_trial or len(self.problems) or self.dynamic is not None:
                guessed = None
            else:
                guesses = guessed_shapes(graph, shapes, values, weights)
                guessed = next((guess for guess in guesses if self._imports({**shapes, **guess}, values)), None)
            is_open = self.dynamic is not None  # only ranks are missing then, which nobody guesses
            likely = guessed or ({} if is_open else next(guessed_shapes(graph, shapes, values, weights), {}))
            self.problems.add(
                open_dimensions(graph, error.names, likely, fits=guessed is not None, may_bound=not self.on_host)
            )
            if self.is_trial:
                return error.found
            return {**error.found, **self.stand_ins.of_inputs(graph, error.names, likely)}

    def _imports(self, shapes: Shapes, values: Values) -> bool:
        """Tell whether the model can be imported with these shapes and values of its inputs."""
        trial = _Importer(
            self.model, self.name, self.folder, external=self.external, on_host=False, census=Census(), is_trial=True
        )
        try:
            with apart():
                trial.run(shapes, values, {})
        except (MlfcError, *MALFORMED):
            return False
        return True

    def opsets(self, imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
        opsets = {table.normal_domain(item.domain): item.version for item in imports}
        version = opsets.setdefault("", 1) if not imports else opsets.get("", table.NEWEST_OPSET)
        if not table.OLDEST_OPSET <= version <= table.NEWEST_OPSET:
            raise UnsupportedError(
                f"opset {version} is not supported, only {table.OLDEST_OPSET} to {table.NEWEST_OPSET}",
                place=self.name,
                next_step="Export the model with another opset, or convert it with onnx.version_converter",
            )
        return opsets

    def initializers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        for tensor in graph.initializer:
            scope.values[tensor.name] = None
            with self.problems.collecting():
                value = tensor_value(tensor, f"tensor '{tensor.name}'", self.folder)
                scope.values[tensor.name] = Constant(value, tensor.name)
        for sparse in graph.sparse_initializer:
            scope.values[sparse.values.name] = None
            self.problems.add(
                UnsupportedError(
                    "sparse initializers are not supported",
                    place=f"tensor '{sparse.values.name}'",
                    next_step="Export the weights as dense tensors",
                )
            )

    def _result(self, scope: Scope, output: str) -> Expr:
        result = scope.values[output]
        if isinstance(result, Tuple) or (result is not None and isinstance(result.type, ListType)):
            raise UnsupportedError(
                f"the output '{output}' is {describe(result)}",
                place=self.name,
                next_step="Give each of its tensors an output (SequenceAt), or cut the model before it",
            )
        if result is None or not isinstance(result.type, TensorType):
            raise InternalError(f"the output '{output}' has no value")
        return result

    def _check_ranks(self, results: Sequence[Expr | None]) -> None:
        """Try other branches where those that were chosen give results of other ranks than the model states."""
        for result, output in zip(results, self.model.graph.output, strict=True):
            shape = declared_extents(output)
            kind = None if result is None else result.type
            if shape is not None and isinstance(kind, TensorType) and len(shape) != len(kind.shape):
                self.choices.misfit(ModelError(f"the output '{output.name}' has {len(kind.shape)} dimensions"))

    def _quantization(self, named: Sequence[tuple[str, Expr]]) -> dict[str, Quantization]:
        return {name: self.noted[id(expr)][1] for name, expr in named if id(expr) in self.noted}

    def _note(self, expr: Expr, quantization: Quantization) -> None:
        # keeping the expression keeps its id its own
        self.noted[id(expr)] = (expr, quantization)

    # Bodies: the main graph, a function's, a branch's

    def body(self, nodes: Sequence[onnx.NodeProto], scope: Scope, outputs: Sequence[str]) -> None:
        """Import the nodes that `outputs` need; their values are in the scope afterwards."""
        place = scope.prefix.rstrip("/") or self.name
        ordered = sorted_nodes(nodes, set(scope.values), place)
        for output in outputs:
            if output not in scope.values and not any(output in item.proto.output for item in ordered):
                raise ModelError(f"nothing produces the output '{output}'", place=place)
        for item in needed_nodes(ordered, outputs):
            spend("operators", 1, f"node '{scope.prefix}{item.label}'")
            self._node(item, scope)

    def _imported(self, item: NodeProto, scope: Scope) -> None:
        proto = item.proto
        domain = table.normal_domain(proto.domain)
        check_text(self.name, item.label, proto.op_type, domain, *proto.input, *proto.output)
        name = scope.prefix + item.label
        wanted = [output for output in proto.output if output]
        function = self.functions.get((domain, proto.op_type, proto.overload))
        self.census.nodes += function is None  # the nodes of its body count
        try:
            # only afterwards: graphs inside of the node may use the names of its outputs for their own values
            with located(proto), defining(wanted, scope):
                if function is not None:
                    self._function(function, proto, scope, name)
                elif not self.external:
                    self._compiled(proto, domain, scope, name)
                else:
                    self._compiled_or_external(proto, domain, scope, name)
        except InternalError:
            raise
        except LimitError:
            if self.stand_ins:  # which may be larger than what they stand for
                self.problems.raise_if_any(self.name)
            raise
        except MlfcError as problem:
            self.restart(problem)
            self._refuse(problem, proto, scope, name)
        self.stand_ins.pass_on(proto, scope.values)

    def _refuse(self, problem: MlfcError, proto: onnx.NodeProto, scope: Scope, name: str) -> None:
        """Remember why a node cannot be compiled; let its outputs be of their types, so that its readers are checked.

        What only follows from such a stand-in is no problem of its own: its value is no constant, and its shape is
        what the model states, or a guess.
        """
        follows = self.stand_ins.feed(proto, scope.values)
        is_unknown = isinstance(problem, UnknownValueError)
        if follows and (is_unknown or not isinstance(problem, UnsupportedError)):
            self.census.unchecked += 1
        else:
            self.problems.add(self._with_runtime(problem, proto, scope, name))
            self.census.refused += 1
        if not self.is_trial:
            likely = problem.likely if isinstance(problem, UnknownValueError) else ()
            self.stand_ins.add(proto, scope.values, scope.declared, partial(self._external, proto, scope, name), likely)

    def _with_runtime(self, problem: MlfcError, proto: onnx.NodeProto, scope: Scope, name: str) -> MlfcError:
        """Return the problem of a node, with ONNX Runtime as its remedy where it takes the node and has no other."""
        if not isinstance(problem, UnsupportedError):
            return problem
        step, remedies = problem.next_step, problem.remedies
        may_offer = self.on_host and not self.external and not self.is_trial
        operands = [scope.values.get(tensor) for tensor in proto.input if tensor]
        if operands and all(isinstance(operand, Constant) for operand in operands):
            may_offer = False  # nothing is left to run: its result is a constant, or none that can be stored
        if may_offer and not remedies and self._runs_outside(proto, scope, name):
            step, remedies = table.runtime_advice(step), (table.ONNX_RUNTIME,)
        return UnsupportedError(problem.cause, place=problem.place, next_step=step, remedies=remedies)

    def _compiled(self, proto: onnx.NodeProto, domain: str, scope: Scope, name: str) -> None:
        if (domain, proto.op_type) == ("", "If"):
            self._branch(proto, scope, name)
        elif not domain and self._is_left_to_run(proto, scope):
            self._repeated(proto, scope, name)
        else:
            self._operator(proto, domain, scope, name)

    def _is_left_to_run(self, proto: onnx.NodeProto, scope: Scope) -> bool:
        """Tell whether a node is a Loop, or another loop with iterations at run time."""
        if proto.op_type == "Loop" or self.dynamic is None:
            return bool(proto.op_type == "Loop")
        values = [scope.values.get(tensor) for tensor in proto.input]
        if proto.op_type == "SequenceMap":
            return any(value is not None and isinstance(value.type, ListType) for value in values)
        opset = scope.opsets.get("", table.NEWEST_OPSET)
        if proto.op_type != "Scan" or opset < 9 or not values:
            return False
        return is_long_scan(proto, values, graph_of(proto, "body", scope.prefix))

    def _compiled_or_external(self, proto: onnx.NodeProto, domain: str, scope: Scope, name: str) -> None:
        """Import a node, as itself where no importer takes it; one that cannot stay has the first refusal's cause."""
        try:
            self._compiled(proto, domain, scope, name)
        except UnsupportedError as refusal:
            try:
                results = self._external(proto, scope, name)
            except UnsupportedError as error:
                step = error.next_step or table.advice(domain, proto.op_type)
                cause = f"{refusal.cause}; {error.cause}"
                raise UnsupportedError(cause, place=error.place, next_step=step, remedies=refusal.remedies) from error
            for tensor, result in zip(proto.output, results, strict=False):
                if result is not None:
                    scope.values[tensor] = result

    def _external(self, proto: onnx.NodeProto, scope: Scope, name: str) -> list[Expr | None]:
        """Return the outputs of a node as ONNX Runtime computes them; nothing where it reads what has no value.

        Raises UnsupportedError if it cannot.
        """
        operands = [scope.values[tensor] if tensor else None for tensor in proto.input]
        captured = {tensor: scope.values.get(tensor) for tensor in dict.fromkeys(captured_names(proto))}
        if any(tensor and value is None for tensor, value in zip(proto.input, operands, strict=True)):
            return []
        known = {tensor: value for tensor, value in captured.items() if value is not None}
        check_captured(proto, captured, scope, name)
        if len(known) < len(captured):
            return []  # the problem that left what it captures without a value is already known
        return external_calls(proto, operands, known, scope.opsets, scope.declared, name)

    def _operator(self, proto: onnx.NodeProto, domain: str, scope: Scope, name: str) -> None:
        opset = scope.opsets.get(domain, 1 if domain else table.NEWEST_OPSET)
        operator = table.qualified(domain, proto.op_type)
        is_old = not domain and opset < older.OPSET
        found = table.find(domain, proto.op_type, older.OPSET if is_old else opset)
        if found is None:
            raise UnsupportedError(
                f"operator '{operator}' (opset {opset}) is not supported",
                place=f"node '{name}'",
                next_step=table.advice(domain, proto.op_type, opset),
            )
        inputs = [scope.values[tensor] if tensor else None for tensor in proto.input]
        if any(tensor and value is None for tensor, value in zip(proto.input, inputs, strict=True)):
            self.census.unchecked += 1  # the problem that left the input without a value is already known
            return
        if not found.sequences:
            check_tensors(proto, inputs, name)
        attributes = decoded_attributes(proto, scope.references, f"node '{name}'", self.folder)
        # weights that meet an input are left as they are in the model; what follows from constants alone is computed
        folds = found.folds and all(isinstance(value, Constant) for value in tensors_in(inputs))
        shapes = [scope.shapes.get(tensor) for tensor in proto.output]
        graphs = partial(self._graph, scope=scope, name=name)
        node = Node(
            name, operator, opset, inputs, list(proto.output), attributes, folds, self._note, shapes, graphs,
            self.runs.draw, dynamic=self.dynamic, checks=self.checks,
        )  # fmt: skip
        check_schema(node, domain, proto.op_type)
        if self.may_restart and proto.output and (declared := scope.declared.get(proto.output[0])) is not None:
            equal = fitting_length(node, declared_extents(declared), self.input_symbols)
            if equal:
                raise Constrained(equal)
        try:
            results = converted(node, found, self.advisor, as_opset_7=is_old)
        except UnequalDimsError as problem:
            self.restart(problem)
            fitted = checked_at_run(older.as_opset_7(node) if is_old else node)
            if fitted is None:
                raise
            results = converted(fitted, found, self.advisor, as_opset_7=False)
        known = named_results(results, proto.output, name)
        if self.dynamic is not None:
            self.dynamic.moved(dict(zip(results, known, strict=True)))
        for tensor, result, named in zip(proto.output, results, known, strict=False):
            if tensor:
                scope.values[tensor] = named
                if id(result) in self.noted:
                    self._note(named, self.noted[id(result)][1])

    def _runs_outside(self, proto: onnx.NodeProto, scope: Scope, name: str) -> bool:
        """Tell whether ``--byoc onnxruntime`` would take a node that cannot be compiled."""
        try:
            return any(self._external(proto, scope, name))
        except MlfcError:
            return False
