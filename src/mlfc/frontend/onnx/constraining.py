"""The part of an import that substitutes values for symbols that the model constrains."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlfc.errors import MlfcError
from mlfc.frontend.dynamic import Constrained, mentions
from mlfc.frontend.onnx.bodies import Bodies
from mlfc.frontend.onnx.constraints import fitting_windows, making_equal, making_least, making_multiples
from mlfc.frontend.onnx.inputs import NodeProto
from mlfc.frontend.onnx.runs import Runs
from mlfc.frontend.onnx.scope import Scope
from mlfc.frontend.onnx.stand_ins import StandIns
from mlfc.ops.rules import NotMultipleError, TooSmallError, UnequalDimsError
from mlfc.relay.ir import Expr, Quantization, Var
from mlfc.support.cost import undone
from mlfc.support.dims import Dim, Extent, Symbol, substituted

CONSTRAINT_LIMIT = 128  # each substitutes values for symbols in all that is imported


class Constraining(Bodies):
    """An import whose nodes may constrain symbols of the inputs."""

    stand_ins: StandIns
    runs: Runs
    noted: dict[int, tuple[Expr, Quantization]]
    scope: Scope | None = None  # of the model's own nodes
    inputs: Mapping[str, Var] = {}
    input_symbols: frozenset[Symbol] = frozenset()
    constraints = 0  # whose symbols were substituted

    @abstractmethod
    def _imported(self, item: NodeProto, scope: Scope) -> None:
        """Import a node; raise `Constrained` for symbols that it constrains."""

    @abstractmethod
    def _note(self, expr: Expr, quantization: Quantization) -> None:
        """Note how the integers of an expression stand for real numbers."""

    def set_inputs(self, inputs: Mapping[str, Var]) -> None:
        """Set the inputs of the model, with the symbols that may be constrained."""
        self.inputs = inputs
        self.input_symbols = frozenset(symbol for var in inputs.values() for symbol in mentions(var))
        if self.dynamic is not None:
            self.dynamic.give(inputs.values())

    def fit_windows(self, outputs: Sequence[str], scope: Scope) -> None:
        """Constrain symbols of the inputs to the bounds in which windows fit into their data."""
        while self.dynamic is not None and self.may_restart and self.constraints < CONSTRAINT_LIMIT:
            results = [value for output in outputs if (value := scope.values[output]) is not None]
            found = fitting_windows(results, self.input_symbols, self.dynamic.functions)
            if not found:
                break
            self._constrain(found, scope)

    def _constrain(self, found: Mapping[Symbol, Extent], scope: Scope) -> None:
        """Substitute values for symbols in all that is imported so far."""
        assert self.dynamic is not None
        self.constraints += 1
        changed = self.dynamic.substitute(found)
        for name, value in scope.values.items():
            scope.values[name] = None if value is None else changed(value)
        for expr, quantization in list(self.noted.values()):
            self._note(changed(expr), quantization)
        self.stand_ins.replace(changed)
        self.set_inputs({name: changed(var) for name, var in self.inputs.items()})  # type: ignore[misc]  # variables

    def _node(self, item: NodeProto, scope: Scope) -> None:
        """Import a node; again with values substituted for symbols where it constrains these."""
        while self.dynamic is not None and self.may_restart and scope is self.scope:
            problems, census, draws = len(self.problems), replace(self.census), self.runs.readers
            mark, stand_ins = self.dynamic.mark(), self.stand_ins.copy()
            try:
                with undone(Constrained):
                    self._imported(item, scope)
                if len(self.problems) == problems:
                    return
                # with the lower bound 1 in place of the default 0, the import may succeed
                found = self.dynamic.nonempty(symbol.dim for symbol in self.dynamic.may_be_empty)
            except Constrained as constraint:
                found = dict(constraint.found)
            if not found:
                return
            if len(self.problems) > problems:
                self.problems.taken_back(problems)
            self.census.nodes, self.census.refused = census.nodes, census.refused
            self.census.unchecked = census.unchecked
            self.runs.readers, self.stand_ins = draws, stand_ins
            self.dynamic.undo(mark)
            for tensor in item.proto.output:
                scope.values.pop(tensor, None)
            if self.constraints < CONSTRAINT_LIMIT:
                self._constrain(found, scope)
            else:  # what is wrong with the node is reported
                self.may_restart, self.dynamic.may_be_empty = False, frozenset()
        self._imported(item, scope)

    def restart(self, problem: MlfcError) -> None:
        """Raise Constrained where dimension sizes of inputs have to be equal, or multiples, or larger."""
        if not self.may_restart:
            return
        found = None
        if isinstance(problem, UnequalDimsError):
            if self.dynamic is not None:
                self.dynamic.exclude_empty(problem.extents, lambda found: _is_simpler(problem.extents, found))
            difference: Any = problem.extents[0] - problem.extents[1]
            if isinstance(difference, Dim) and not difference.symbols <= self.input_symbols:
                return
            found = making_equal(*problem.extents, self.input_symbols)
            if found is None:
                by = problem.by if isinstance(problem, NotMultipleError) else None
                found = making_multiples(*problem.extents, self.input_symbols, by)
        elif isinstance(problem, TooSmallError):
            # runs check the bounds of symbols that nodes define, too
            defined = frozenset(self.dynamic.defined_symbols if self.dynamic is not None else ())
            found = making_least(problem.extent, problem.least, self.input_symbols | defined)
        if found is not None:
            raise Constrained(found) from problem
        self.choices.misfit(problem)


def _is_simpler(extents: Sequence[Any], values: Mapping[Any, Any]) -> bool:
    """Tell whether other bounds of symbols, whose names stay, give an extent another form."""
    return any(str(substituted(extent, values)) != str(extent) for extent in extents)
