"""ONNX importer: nodes are imported in topological order, each by its operator's importer; problems are collected."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from mlfc.byoc.onnx_graphs import captured_names, inner_graphs
from mlfc.errors import InternalError, LimitError, MlfcError, ModelError, UnsupportedError
from mlfc.frontend.common import Census, Params, Values, finish, numbered
from mlfc.frontend.dynamic import Constrained, Dynamic
from mlfc.frontend.onnx import custom, model_io, older, table
from mlfc.frontend.onnx.bodies import Choices, Chosen, Scope, decoded_attributes, graph_of
from mlfc.frontend.onnx.constraining import Constraining, fitting_length
from mlfc.frontend.onnx.containers import check_tensors, describe, tensors_in
from mlfc.frontend.onnx.conversion import MALFORMED, check_schema, checked_at_run, converted, named_results
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
from mlfc.frontend.onnx.loops import is_long_scan
from mlfc.frontend.onnx.node import Node, UnknownValueError
from mlfc.frontend.python_trace import located
from mlfc.ops.rules import UnequalDimsError
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, IRModule, ListType, State, TensorType, Var
from mlfc.support.cost import apart, give_nodes, spend, undone
from mlfc.support.tensor_info import Container

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

    `name` is the model's name in messages and in the module's source facts. `shapes` specifies inputs with dynamic
    dimensions; inputs with `values` become constants. External data are only read from files in `folder`. With
    `external`, nodes that cannot be compiled are kept for ONNX Runtime if it supports them. `on_host` is True if the
    target can run ONNX Runtime, so that messages may suggest it. `census` counts the nodes. With `dynamic`, dynamic
    dimensions, data-dependent shapes, branches and loops are left to run time. Raises ModelError, UnsupportedError, or
    ProblemsError with all problems.
    """
    step = "Use a .tflite, .onnx or Relay text file, or export the model again"
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ModelError("the file is not an ONNX model, or it is damaged", place=name, next_step=step) from error
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError("the file holds no ONNX graph with outputs", place=name, next_step=step)
    give_nodes(_tensor_count(model))
    source = {"format": "onnx", "sha256": hashlib.sha256(data).hexdigest(), "name": name}
    census = census or Census()

    def imported(shapes: Shapes, census: Census, mixes: bool = True) -> tuple[IRModule, Params]:
        """Run an import, and restart it each time a node requires other branches."""
        choices, restarts = Choices(), 0
        while True:
            may_restart = restarts < _RESTART_LIMIT
            frames = Dynamic(partial(choices.chosen, may_restart), mixes=mixes) if dynamic else None
            importer = _Importer(
                model, name, folder, census, external, on_host,
                dynamic=frames, choices=choices, may_restart=may_restart,
            )  # fmt: skip
            restarts += 1
            try:
                with undone(Chosen):
                    return importer.run(shapes, values or {}, source)
            except Chosen:
                census.nodes = census.refused = census.unchecked = 0

    def can_import(shapes: Shapes, mixes: bool) -> bool:
        return _succeeds(lambda: imported(shapes, Census(), mixes))

    try:
        shapes = model_io.with_ranks(model.graph, shapes or {}, can_import) if dynamic else shapes or {}
        return imported(shapes, census)
    except MALFORMED as error:
        raise ModelError(f"the model is malformed: {error}", place=name) from error


def _succeeds(run: Callable[[], object]) -> bool:
    try:
        with apart():
            run()
    except (MlfcError, *MALFORMED):
        return False
    return True


def _tensor_count(model: onnx.ModelProto) -> int:
    """Return the number of tensors that the nodes of a file refer to, counting each function and branch once."""
    count = 0
    waiting = [model.graph.node, *(function.node for function in model.functions)]
    while waiting:
        for node in waiting.pop():
            count += len(node.input) + len(node.output)
            waiting.extend(graph.node for graph in inner_graphs(node))
    return count


class _Importer(Constraining):
    """A single import."""

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
        for item in graph.output:  # if an output has an unexpected rank, other branches are tried
            shape, value = declared_extents(item), scope.values[item.name]
            kind = None if value is None else value.type
            if shape is not None and isinstance(kind, TensorType) and len(shape) != len(kind.shape):
                self.choices.misfit(ModelError(f"the output '{item.name}' has {len(kind.shape)} dimensions"))
        self.fit_windows(outputs, scope)
        inputs = self.inputs
        results, titles = self._results(scope, outputs, containers)
        named = [*inputs.items(), *zip(titles, results, strict=True)]
        quantization = {name: self.noted[expr] for name, expr in named if expr in self.noted}
        if self.checks:  # the first result depends on all checks
            flags = [ir.call("reshape", [flag], newshape=()) for flag in self.checks]
            holds = ir.call("require", [reduce(lambda a, b: ir.call("logical_and", [a, b]), flags)])
            none = ir.const(0, ir.tensor_type(results[0]).dtype)
            results[0] = ir.call("where", [holds, results[0], none], span=results[0].span)
        variables, states = list(inputs.values()), []
        following = self.runs.next_number(results)
        if following is not None:
            variables, results, titles = (
                [*variables, self.runs.number], [*results, following], [*titles, self.runs.next_name]
            )  # fmt: skip
            states = [State(self.runs.number.name, self.runs.next_name)]
        finished = partial(finish, variables, results, titles, quantization, source, frozen, states)
        if self.dynamic is None:
            return finished()
        needs = self.dynamic.needs(self.dynamic.frame, variables, results, frozenset())
        module, params = finished(needs.defines, self.dynamic.functions)
        return replace(module, containers=tuple(containers)), params

    def _containers(self, given: Mapping[str, Var | Constant], scope: Scope) -> list[Container]:
        """Add inputs that are sequences or optionals to the scope; return their descriptions."""
        found: list[Container] = []
        for item in self.model.graph.input if self.dynamic is not None else ():
            container = model_io.container_of(item) if item.name not in scope.values else None
            if container is None:
                continue
            assert self.dynamic is not None
            found.append(container)
            parts = [given[name] for name in container.parts if name in given]
            is_complete = len(parts) == len(container.parts)
            scope.values[item.name] = model_io.input_value(container, parts, self.dynamic) if is_complete else None
        return found

    def _results(
        self, scope: Scope, outputs: Sequence[str], containers: list[Container]
    ) -> tuple[list[Expr], list[str]]:
        """Return the results of the model with their names; add sequences and optionals to `containers`."""
        results: list[Expr] = []
        titles: list[str] = []
        for item, title in zip(self.model.graph.output, numbered(outputs), strict=True):
            value = scope.values[item.name]
            if value is None:
                raise InternalError(f"the output '{item.name}' has no value")
            if isinstance(value.type, TensorType) and (self.dynamic is None or model_io.container_of(item) is None):
                results.append(value)
                titles.append(title)
                continue
            if self.dynamic is None:
                raise UnsupportedError(
                    f"the output '{item.name}' is {describe(value)}",
                    place=self.name,
                    next_step="Add an output for each of its tensors (SequenceAt), or cut the model before it",
                )
            for container, name, part in model_io.output_parts(value, item, title, self.dynamic):
                containers += [container] if container not in containers else []
                results.append(part)
                titles.append(name)
        taken = [name for name, count in Counter(titles).items() if count > 1]
        if taken:
            cause = f"the part '{taken[0]}' of a sequence has the name of another output"
            raise UnsupportedError(cause, place=self.name, next_step="Rename the output")
        return results, titles

    def _inputs(self, shapes: Shapes, values: Values, scope: Scope) -> dict[str, Var | Constant]:
        graph, weights = self.model.graph, set(scope.values)
        try:
            return model_io.input_variables(graph, shapes, values, weights, self.problems, self.dynamic)
        except model_io.OpenShapesError as error:
            # a dynamic import only requires ranks, which are not guessed
            guesses = list(guessed_shapes(graph, shapes, values, weights)) if self.dynamic is None else []

            def can_import(guess: Shapes) -> bool:
                start = partial(_Importer, self.model, self.name, self.folder, Census(), self.external)
                return _succeeds(lambda: start(on_host=False, is_trial=True).run({**shapes, **guess}, values, {}))

            may_try = not self.is_trial and not len(self.problems)
            guessed = next(filter(can_import, guesses if may_try else ()), None)
            likely = guessed or next(iter(guesses), {})
            self.problems.add(
                open_dimensions(graph, error.names, likely, fits=guessed is not None, may_bound=not self.on_host)
            )
            if self.is_trial:
                return error.found
            return {**error.found, **self.stand_ins.of_inputs(graph, error.names, likely)}

    # Bodies: the main graph, functions and branches

    def body(self, nodes: Sequence[onnx.NodeProto], scope: Scope, outputs: Sequence[str]) -> None:
        """Import the nodes that `outputs` depend on, and add their values to the scope."""
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
        function = self.functions.get((domain, proto.op_type, proto.overload))
        if function is not None and custom.declared(domain, proto.op_type) is not None:
            function = None  # the declaration has precedence
        self.census.nodes += function is None  # the nodes of the function's body are counted
        try:
            with located(proto):
                if function is not None:
                    self._function(function, proto, scope, name)
                else:
                    self._compiled_or_external(proto, domain, scope, name)
        except InternalError:
            raise
        except LimitError:
            if self.stand_ins:  # stand-ins may be larger than the actual tensors
                self.problems.raise_if_any(self.name)
            raise
        except MlfcError as problem:
            self.restart(problem)
            self._refuse(problem, proto, scope, name)
        finally:
            # only now, as graphs inside the node may use the names of its outputs for their own values
            for tensor in filter(None, proto.output):
                scope.values.setdefault(tensor, None)
        self.stand_ins.pass_on(proto, scope.values)

    def _refuse(self, problem: MlfcError, proto: onnx.NodeProto, scope: Scope, name: str) -> None:
        """Record why a node cannot be compiled; add stand-ins for its outputs, so that its readers are checked."""
        # a failure caused by a stand-in is not a problem: its value is not constant, and its shape may be a guess
        follows = self.stand_ins.feed(proto, scope.values)
        is_unknown = isinstance(problem, UnknownValueError)
        if follows and (is_unknown or not isinstance(problem, UnsupportedError)):
            self.census.unchecked += 1
        else:
            self.problems.add(self._with_runtime(problem, proto, scope, name))
            self.census.refused += 1
        if not self.is_trial:
            likely = problem.likely if isinstance(problem, UnknownValueError) else ()
            self.stand_ins.stand_for(
                proto, scope.values, scope.declared, partial(self._external, proto, scope, name), likely
            )

    def _with_runtime(self, problem: MlfcError, proto: onnx.NodeProto, scope: Scope, name: str) -> MlfcError:
        """Return a node's problem; suggest ONNX Runtime if it supports the node and the problem has no other remedy."""
        if not isinstance(problem, UnsupportedError):
            return problem
        step, remedies, takes_it = problem.next_step, problem.remedies, False
        operands = [scope.values.get(tensor) for tensor in proto.input if tensor]
        # with only constant operands the result is constant, or cannot be stored
        is_known = operands and all(isinstance(operand, Constant) for operand in operands)
        if self.on_host and not (self.external or self.is_trial or is_known or remedies):
            with suppress(MlfcError):
                takes_it = any(self._external(proto, scope, name))
        if takes_it:
            step, remedies = f"{table.RUN_IT}. {step}" if step else table.RUN_IT, (table.ONNX_RUNTIME,)
        return UnsupportedError(problem.cause, place=problem.place, next_step=step, remedies=remedies)

    def _compiled(self, proto: onnx.NodeProto, domain: str, scope: Scope, name: str) -> None:
        kind, is_repeated = "" if domain else proto.op_type, not domain and proto.op_type == "Loop"
        values = [scope.values.get(tensor) for tensor in proto.input]
        if self.dynamic is not None and kind == "SequenceMap":
            is_repeated = any(value is not None and isinstance(value.type, ListType) for value in values)
        elif self.dynamic is not None and kind == "Scan" and scope.opsets.get("", table.NEWEST_OPSET) >= 9 and values:
            is_repeated = is_long_scan(proto, values, graph_of(proto, scope.prefix))
        if kind == "If":
            self._branch(proto, scope, name)
        elif is_repeated:
            self._repeated(proto, scope, name)
        else:
            self._operator(proto, domain, scope, name)

    def _compiled_or_external(self, proto: onnx.NodeProto, domain: str, scope: Scope, name: str) -> None:
        """Import a node, or keep it for ONNX Runtime if it has no importer; if neither works, report both causes."""
        try:
            self._compiled(proto, domain, scope, name)
        except UnsupportedError as refusal:
            if not self.external:
                raise
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
        """Return the outputs of a node as computed by ONNX Runtime; an empty list if an input has no value."""
        operands = [scope.values[tensor] if tensor else None for tensor in proto.input]
        captured = {tensor: scope.values.get(tensor) for tensor in dict.fromkeys(captured_names(proto))}
        if any(tensor and value is None for tensor, value in zip(proto.input, operands, strict=True)):
            return []
        known = {tensor: value for tensor, value in captured.items() if value is not None}
        missing = next((tensor for tensor in captured if tensor not in scope.values), None)
        if missing is not None:
            cause = f"{proto.op_type} reads the tensor '{missing}', which nothing produces"
            raise ModelError(cause, place=f"node '{name}'")
        if len(known) < len(captured):
            return []  # the problem that left a captured tensor without a value is already recorded
        return external_calls(proto, operands, known, scope.opsets, scope.declared, name)

    def _operator(self, proto: onnx.NodeProto, domain: str, scope: Scope, name: str) -> None:
        opset = scope.opsets.get(domain, 1 if domain else table.NEWEST_OPSET)
        operator = table.qualified(domain, proto.op_type)
        is_old = not domain and opset < older.OPSET
        found = table.find(domain, proto.op_type, older.OPSET if is_old else opset)
        found = custom.find(domain, proto.op_type) if found is None else found
        if found is None:
            cause = f"operator '{operator}' (opset {opset}) is not supported"
            raise UnsupportedError(cause, place=f"node '{name}'", next_step=table.advice(domain, proto.op_type, opset))
        inputs = [scope.values[tensor] if tensor else None for tensor in proto.input]
        if any(tensor and value is None for tensor, value in zip(proto.input, inputs, strict=True)):
            self.census.unchecked += 1  # the problem that left the input without a value is already recorded
            return
        if not found.sequences:
            check_tensors(proto, inputs, name)
        attributes = decoded_attributes(proto, scope.references, f"node '{name}'", self.folder)
        # only expressions of constants are folded; weights that are combined with inputs are kept as in the model
        folds = found.folds and all(isinstance(value, Constant) for value in tensors_in(inputs))
        shapes = [scope.shapes.get(tensor) for tensor in proto.output]
        graphs = partial(self._graph, scope=scope, name=name)
        node = Node(
            name, operator, opset, inputs, list(proto.output), attributes, folds, self.noted, shapes, graphs,
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
                if result in self.noted:
                    self.noted[named] = self.noted[result]
