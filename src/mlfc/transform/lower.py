"""Lower a fused graph to a loop-level program: each group becomes a call of one tir function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlfc.errors import UnsupportedError
from mlfc.relay import ir as relay
from mlfc.relay.visitor import post_order
from mlfc.support.dims import Symbol, symbols_of
from mlfc.target.features import Features, without_transforms
from mlfc.tir import program as tir_program
from mlfc.tir.program import Assign, BranchOnSymbols, KernelCall, ListOperation, Program, Return, StateValue, Value
from mlfc.transform.device_placement import DevicePlacement
from mlfc.transform.lower_control import ControlFlowBuilder, Tail, results_of
from mlfc.transform.lower_group import LoweredGroup
from mlfc.transform.matching import storage_owner
from mlfc.transform.rounding import is_rounding_sensitive
from mlfc.transform.row_tiling import TiledChain
from mlfc.transform.share_kernels import share_kernels


def lower(
    module: relay.IRModule,
    features: Features,
    name: str = "default",
    tiled: TiledChain | None = None,
    cache: dict[relay.Function, LoweredGroup] | None = None,
    placement: DevicePlacement | None = None,
    shares_work: bool = False,
    special: Sequence[tuple[Mapping[Symbol, int], relay.IRModule]] = (),
    dynamic: bool = False,
) -> Program:
    """Lower a fused module, whose functions contain only Primitive functions, VIEW operators and control flow.

    `features` are the target's, or the host's if `placement` runs groups on a device. `tiled` is a chain of layers to
    be tiled by rows. `cache` maps groups of the same module and features to their lowered form; new groups are added.
    Equal kernels appear once. With `shares_work`, kernels split their work among threads that advance in any order, so
    no output overlaps the memory of an input.

    In a static program, callers own the memory of outputs; a tensor that a kernel reads on another device is copied
    there once, by a call before the kernel. `dynamic` programs have instructions other than calls, and return their
    outputs. `special` are versions of the module for certain values of the inputs' symbols; the first that matches at
    run time is executed. Raises UnsupportedError for recursion other than loops.
    """
    builder = _ProgramBuilder(features, tiled, {} if cache is None else cache, placement, dynamic)
    program = builder.build(module, name, special)
    return replace(program, overlaps=False) if shares_work else program


class _ProgramBuilder(ControlFlowBuilder):
    """Builder of whole programs: adds inputs, outputs and states to the instructions."""

    def build(
        self, module: relay.IRModule, name: str, special: Sequence[tuple[Mapping[Symbol, int], relay.IRModule]] = ()
    ) -> Program:
        """Return the program of a module's ``main``."""
        self._rounding_sensitive = is_rounding_sensitive([module, *(other for _, other in special)])
        if self._rounding_sensitive:  # use the reference's order of float operations
            self._features = without_transforms(self._features)
        kept = {state.input for state in module.states}
        declared = {}
        for param in module.main.params:
            device = self._placement.device_of(param) if self._placement and not self._dynamic else None
            kind = "state" if param.name in kept and not self._dynamic else "input"
            declared[param.name] = self._declare(param, param.name, kind, device=device)
        if self._dynamic:
            outputs, states = self._returned_results(module, declared, special)
        else:
            outputs, states = self._stored_results(module, declared)
        if self._features.optimize != "size":  # for size, printers also merge kernels that differ in sizes
            calls = [item for item in self._instructions if isinstance(item, KernelCall)]
            shared = share_kernels(calls, self._constant)
            instead = {call.kernel: other.kernel for call, other in shared.items()}
            kernels = (instead.get(kernel, kernel) for kernel in self._kernels.values())
            self._kernels = {kernel.name: kernel for kernel in kernels}
            self._instructions = [
                shared.get(item, item) if isinstance(item, KernelCall) else item for item in self._instructions
            ]
        read = {state.initial for state in states}
        for item in self._instructions:
            passes = isinstance(item, (KernelCall, Assign, ListOperation, Return))
            read |= {value.root for value in tir_program.sources_of(item)} if passes else set()
            read |= {value.root for value in item.constants} if isinstance(item, KernelCall) else set()
        return Program(
            name,
            tuple(value for value in declared.values() if value.name not in kept),
            outputs,
            tuple(value for value in self._constants.values() if value in read),
            tuple(self._kernels.values()),
            tuple(self._instructions),
            contracts_floats=not self._rounding_sensitive,
            overlaps=not (self._dynamic or self._features.vector_bytes or self._placement),
            states=states,
        )

    # static programs: results are stored in memory of the caller or of a state

    def _stored_results(
        self, module: relay.IRModule, declared: Mapping[str, Value]
    ) -> tuple[tuple[Value, ...], tuple[StateValue, ...]]:
        """Append the calls of ``main``; return the outputs and states."""
        body = module.main.body
        heads = body.fields if isinstance(body, relay.Tuple) else (body,)
        names = module.output_names or tuple(f"output{i}" if len(heads) > 1 else "output" for i in range(len(heads)))
        results = dict(zip(names, heads, strict=True))
        next_heads = {state: results.pop(state.output) for state in module.states}
        claims: dict[relay.Expr, str] = {}  # the calls that write an output's memory
        for name, head in results.items():
            if isinstance(owner := storage_owner(head), relay.Call):
                claims.setdefault(owner, name)
        for expr in post_order(body):
            if expr not in self._values:
                self._visit(expr, claims.get(expr))
        outputs = []
        for name, head in results.items():
            value = self._values[head]
            if claims.get(storage_owner(head)) == name:
                is_root = value is value.root
                outputs.append(value if is_root else replace(value, name=name, kind="output", alias_of=value.root))
            else:  # an input, a constant or another output
                outputs.append(Value(name, value.shape, value.dtype, "output"))
                self._add(self._kernel_call(self._copying(value), [value], outputs[-1], ()))
        return tuple(outputs), self._states(next_heads, declared)

    def _states(self, heads: Mapping[relay.State, relay.Expr], declared: Mapping[str, Value]) -> tuple[StateValue, ...]:
        """Return the states; each next value is an intermediate that no other state shares."""
        found: list[StateValue] = []
        for state, head in heads.items():
            before, value = declared[state.input], self._values[head]
            taken = any(value.root is other.after for other in found)
            if value.root.kind != "intermediate" or not value.is_whole or value.device != before.device or taken:
                copied = Value(state.output, value.shape, value.dtype, "intermediate", device=before.device)
                self._add(self._copy_call(value, copied))
                value = copied
            after = value.root
            written = Value(state.output, after.shape, after.dtype, "state", device=before.device)
            initial = None
            if state.initial is not None:
                initial = Value(before.name, before.shape, before.dtype, "constant", state.initial)
            found.append(StateValue(before, after, written, self._copy_call(after, written), initial))
        return tuple(found)

    # dynamic programs: results are returned

    def _returned_results(
        self,
        module: relay.IRModule,
        declared: Mapping[str, Value],
        special: Sequence[tuple[Mapping[Symbol, int], relay.IRModule]],
    ) -> tuple[tuple[Value, ...], tuple[StateValue, ...]]:
        """Append the instructions of the special modules, then of ``main``; return the outputs and states."""
        inputs = tuple(declared.values())
        for state in module.states:
            value = declared[state.input]
            if symbols_of(value.shape):
                fixed = ",".join(str(extent) if isinstance(extent, int) else "1" for extent in value.shape)
                raise UnsupportedError(
                    f"the state '{value.name}' has a dynamic shape; the shape of a state must be static",
                    place=f"state '{value.name}'",
                    next_step=f"Make it static: --shape {value.name}={fixed}",
                )
        self._bind_inputs(inputs)
        bound = frozenset(self._known)
        for values, other in special:
            next_part = self._label("other_extents")
            self._instructions.append(BranchOnSymbols(tuple(values.items()), next_part))
            shapes = [relay.tensor_type(param).shape for param in other.main.params]
            static = [
                value if shape == value.shape else replace(value, shape=shape, alias_of=value)
                for value, shape in zip(inputs, shapes, strict=True)
            ]
            self._module = other
            self._function("main", static, Tail())
            self._instructions.append(next_part)
            self._known = set(bound)
        self._module = module
        results = self._declared(module, self._function("main", inputs, Tail()))
        count = len(results) - len(module.states)
        states = []
        for state, after in zip(module.states, results[count:], strict=True):
            is_zero = state.initial is None or not state.initial.any()
            initial = None if state.initial is None or is_zero else self._constant(state.input, state.initial)
            states.append(StateValue(declared[state.input], after, after, None, initial))
        return results[:count], tuple(states)

    def _declared(self, module: relay.IRModule, written: Sequence[Value]) -> tuple[Value, ...]:
        """Return the outputs with the shapes of the module's result types, which cover all branches."""
        kinds = [item.type for item in results_of(module.main)]
        kinds = list(kinds[0].fields) if isinstance(kinds[0], relay.TupleType) else kinds
        names, kept = module.output_names, {state.output for state in module.states}
        if kept:  # `_returned` puts them last
            kinds = [kind for name, kind in zip(names, kinds, strict=True) if name not in kept]
        outputs = (
            replace(value, shape=kind.shape) if isinstance(kind, relay.TensorType) else value
            for value, kind in zip(written, kinds, strict=False)
        )
        return (*outputs, *written[len(kinds) :])
